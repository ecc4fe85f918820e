"""Options of the commands: one class for each group, with defaults and help.

The command line's parser reads the annotations; `max_model_len` is `--max-model-len`. Whether the
values fit together, `plan` and the settings check.
"""

from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import Parameter

from ...engine.config import EngineSettings
from ...nurseries.logs import LogSettings
from ...nurseries.processes.process import LadderTimes
from ...runtime.config import AdmissionLimits, InputLimits, StreamSettings, SupervisionSettings
from ..limits import ServerLimits
from ..settings import GRACE_S, RESUME_KEEP_S

_RESTARTS = SupervisionSettings()
_LOGS = LogSettings()
# In `config show`, in files and in the environment, but not in `--help`, which is for the first
# hour.
RARE = Parameter(show=False)
# Options that may be given often: empty unless given, and there is no option to say so.
_LIST: dict[str, Any] = {"negative": (), "show_default": False}


def options_of(settings: type[Any]) -> type[Any]:
    """Options class of the fields of a settings class that have a sentence of help."""
    options = {}
    for field in attrs.fields(settings):
        if sentence := field.metadata["help"]:
            name = field.name.removesuffix("_s").replace("_", "-")
            note = Parameter(name=name, help=sentence, show=not field.metadata["rare"])
            kind: dict[str, Any] = {"type": Annotated[field.type, note]}
            options[field.name] = attrs.field(default=field.default, **kind)
    return attrs.make_class(f"OptionsOf{settings.__name__}", options, frozen=True, kw_only=True)


if TYPE_CHECKING:
    EngineOptions = EngineSettings
else:
    EngineOptions = options_of(EngineSettings)


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
    # Of restarts: the first delay, the longest.
    backoff_min: Annotated[float, RARE] = _RESTARTS.backoff_min_s
    backoff_max: Annotated[float, RARE] = _RESTARTS.backoff_max_s
    # Options by dotted names, as `--limits.http.head-s`. In a file: `head_s = 2` below
    # `[serve.limits.http]`. In the environment: `TRIOLET_LIMITS_HTTP_HEAD_S`.
    limits: Annotated[ServerLimits, RARE] = attrs.field(factory=ServerLimits)
    admission: Annotated[AdmissionLimits, RARE] = attrs.field(factory=AdmissionLimits)
    input: Annotated[InputLimits, RARE] = attrs.field(factory=InputLimits)
    streams: Annotated[StreamSettings, RARE] = attrs.field(factory=StreamSettings)
    ladder: Annotated[LadderTimes, RARE] = attrs.field(factory=LadderTimes)


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
