"""What can be said to the commands: one class for each group of options, with its help.

Plain data with defaults; the command line's parser reads the annotations. The names here are the
options' names, `max_model_len` is `--max-model-len`. Must not know what the values mean or whether
they fit together: `plan` and the settings do.
"""

from typing import Annotated, Any

import attrs
from cyclopts import Parameter

from ...engine.config import EngineSettings
from ...nurseries.logs import LogSettings
from ...runtime.config import SupervisionSettings
from ..settings import GRACE_S, RESUME_KEEP_S

_DEFAULTS = EngineSettings(model="")
_RESTARTS = SupervisionSettings()
_LOGS = LogSettings()
# In `config show`, in files and in the environment, but not in `--help`, which is for the first
# hour.
_RARE: dict[str, Any] = {"show": False}
# Options that may be given often: empty unless given, and there is no option to say so.
_LIST: dict[str, Any] = {"negative": (), "show_default": False}


@attrs.frozen(kw_only=True)
class EngineOptions:
    """How a model is computed; fields of `EngineSettings` by their own names."""

    executor: Annotated[
        str,
        Parameter(help="What computes: auto (native, else torch), native, torch, null (nothing)."),
    ] = _DEFAULTS.executor
    isa: Annotated[
        str, Parameter(help="Instruction set of native kernels; empty: the best.", **_RARE)
    ] = _DEFAULTS.isa
    load_format: Annotated[
        str, Parameter(help="auto, or dummy for random weights from config.json.")
    ] = _DEFAULTS.load_format
    device: Annotated[str, Parameter(help="Where torch computes: cpu or cuda.")] = _DEFAULTS.device
    workers: Annotated[int, Parameter(help="Worker processes of each engine.")] = _DEFAULTS.workers
    threads: Annotated[int, Parameter(help="Threads of each worker; 0: as many as are of use.")] = (
        _DEFAULTS.threads
    )
    max_model_len: Annotated[
        int, Parameter(help="Longest prompt plus answer, in tokens; 0: the model's.")
    ] = _DEFAULTS.max_model_len
    kv_blocks: Annotated[int, Parameter(help="KV cache in blocks of 16 tokens; 0: as fits.")] = (
        _DEFAULTS.kv_blocks
    )
    max_num_seqs: Annotated[int, Parameter(help="Most requests that one step computes.")] = (
        _DEFAULTS.max_num_seqs
    )
    max_num_batched_tokens: Annotated[
        int,
        Parameter(
            help="Most tokens that one step computes; bounds the gap between tokens. Four times as "
            "many while everybody waits for a whole answer."
        ),
    ] = _DEFAULTS.max_num_batched_tokens
    step_time_target_s: Annotated[
        float,
        Parameter(
            name="step-time-target",
            help="Cut prompts so that no step should take more seconds; 0: never.",
            **_RARE,
        ),
    ] = _DEFAULTS.step_time_target_s
    max_logprobs: Annotated[
        int, Parameter(help="Most alternatives of a token that logprobs may ask for.", **_RARE)
    ] = _DEFAULTS.max_logprobs
    scheduling_policy: Annotated[
        str, Parameter(help="priority: lower numbers first; fcfs: whatever requests ask for.")
    ] = _DEFAULTS.scheduling_policy
    steps_in_flight: Annotated[
        int, Parameter(help="2: plan the next step while one computes; 1: not.", **_RARE)
    ] = _DEFAULTS.steps_in_flight
    prefix_cache: Annotated[bool, Parameter(help="Compute what prompts have in common once.")] = (
        _DEFAULTS.prefix_cache
    )
    kv_memory_bytes_max: Annotated[
        int,
        Parameter(
            help="Most memory for KV blocks where --kv-blocks is 0; 0: 1 GiB or a GPU's.",
            **_RARE,
        ),
    ] = _DEFAULTS.kv_memory_bytes_max
    boot_timeout_s: Annotated[
        float, Parameter(name="boot-timeout", help="A start may stand still so long.", **_RARE)
    ] = _DEFAULTS.boot_timeout_s
    step_timeout_s: Annotated[
        float, Parameter(name="step-timeout", help="One step may take so long.", **_RARE)
    ] = _DEFAULTS.step_timeout_s
    orphan_s: Annotated[
        float,
        Parameter(name="orphan", help="Requests outlive their frontend so long.", **_RARE),
    ] = _DEFAULTS.orphan_s
    null_step_s: Annotated[
        float,
        Parameter(name="null-step", help="Seconds that each step of the null executor takes."),
    ] = _DEFAULTS.null_step_s


@attrs.frozen(kw_only=True)
class ServeOptions:
    """Where a server listens, for whom, and with how many processes."""

    host: Annotated[str, Parameter(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Parameter(help="Port to listen on; 0 lets the system choose.")] = 8000
    api_key: Annotated[
        tuple[str, ...],
        Parameter(
            help="Key that clients must send; may be given often.",
            env_var="TRIOLET_API_KEY",
            **_LIST,
        ),
    ] = attrs.field(default=(), repr=False)
    admin_key: Annotated[
        tuple[str, ...],
        Parameter(
            help="Key that opens admin routes, too; without any there are none.",
            env_var="TRIOLET_ADMIN_KEY",
            **_LIST,
        ),
    ] = attrs.field(default=(), repr=False)
    vllm_metrics: Annotated[
        bool, Parameter(help="Tell metrics under vLLM's names, too, for its dashboards.")
    ] = False
    allowed_host: Annotated[
        tuple[str, ...],
        Parameter(help="Host header to accept besides localhost and addresses.", **_LIST),
    ] = ()
    allowed_origin: Annotated[
        tuple[str, ...], Parameter(help="Browser origin to accept besides our own.", **_LIST)
    ] = ()
    engines: Annotated[int, Parameter(help="Engine processes; each has the whole model.")] = 1
    frontends: Annotated[int, Parameter(help="Frontend processes.")] = 1
    spare_engines: Annotated[
        int, Parameter(help="Processes that wait to be the next engine, where one dies.")
    ] = 1
    spare_frontends: Annotated[
        int, Parameter(help="Processes that wait to be the next frontend, where one dies.")
    ] = 1
    model_name: Annotated[str, Parameter(help="What clients call the model.")] = ""
    generation_config: Annotated[
        str,
        Parameter(help="auto: the model's advice where a request leaves sampling open; or none."),
    ] = "auto"
    log_format: Annotated[str, Parameter(help="human, or json: one object a line.")] = _LOGS.format
    log_level: Annotated[str, Parameter(help="debug, info, warning or error.")] = _LOGS.level
    grace: Annotated[float, Parameter(help="Seconds to serve out after the first Ctrl-C.")] = (
        GRACE_S
    )
    resume_keep: Annotated[
        float,
        Parameter(help="Longest `runtime.keep_s`: seconds that a response outlives its reader."),
    ] = RESUME_KEEP_S
    restart_limit: Annotated[
        int, Parameter(help="A process that dies more often within the period is given up.")
    ] = _RESTARTS.restart_limit
    restart_period: Annotated[
        float, Parameter(help="Seconds over which its deaths are counted.")
    ] = _RESTARTS.restart_period_s


@attrs.frozen(kw_only=True)
class FileOptions:
    """What every command takes that has settings."""

    config: Annotated[
        str,
        Parameter(
            help="Settings file in TOML: a table for each command, keys as the options' names."
        ),
    ] = ""


@attrs.frozen(kw_only=True)
class ChatOptions:
    """How answers are drawn."""

    system: Annotated[str, Parameter(help="System message of the conversation.")] = ""
    temperature: Annotated[float, Parameter(help="0 is greedy.")] = 0.7
    max_tokens: Annotated[int, Parameter(help="Longest answer, in tokens.")] = 256
    seed: Annotated[int | None, Parameter(help="Same seed, same answers.")] = None
