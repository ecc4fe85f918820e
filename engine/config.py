"""Settings of one engine: a frozen class that the root sends in INIT and that READY's hash covers.

Each is declared once, with type, default, bounds and the sentence of `--help`, by `setting`, as
those of other floors are; the commands' options are derived from it (`api.commands.options`).
Everything here is plain data, so that it crosses the control socket as it is.
"""

import hashlib
import math
import re
from collections.abc import Callable
from typing import Any

import attrs
import msgspec

from ..transports.endpoint import BadEndpoint, check_public_endpoint
from .errors import InvalidParameter
from .sampling_params import LOGPROBS_MAX, MAX_LOGPROBS_DEFAULT

DEVICES = ("cpu", "cuda")
EXECUTORS = ("auto", "native", "torch", "null")
# Modules of worker processes, by name, not by import: a process boundary is an import boundary.
WORKER_MODULE = "triolet.engine.worker.process"
NATIVE_WORKER_MODULE = "triolet.engine.worker.native_process"
TORCH_WORKER_MODULE = "triolet.engine.worker.torch_process"
# An extra: the native kernels need none of it, and it takes 850 MB, with CUDA several GB.
TORCH_REMEDY = "pip install 'triolet[torch]'"
# Instruction sets of native kernels, best first; `kernels/build` compiles them.
ISAS = ("avx512bf16", "avx512", "avx2", "plain")
LOAD_FORMATS = ("auto", "dummy")
SCHEDULING_POLICIES = ("priority", "fcfs")
# 16 tokens: the grain of the prefix cache in vLLM, and the tile of the bitwise linear layers.
BLOCK_TOKENS = 16
# Factor for the tokens of a step where no reader looks at single tokens: the step's fixed cost is
# paid less often, and prompts are over sooner, so that more decode together.
UNWATCHED_FACTOR = 4
# More would only make aborts take longer: one step computes, one waits (as slots of the ring do).
STEPS_IN_FLIGHT_MAX = 2
# Longer than any prompt that one step computes whole; what is larger is a slip of the hand, and
# would take memory for so many tokens at the start.
STEP_TOKENS_MAX = 131_072


_TYPE_NAMES = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list",
}


def setting(
    default: Any,
    *,
    at_least: float = 0,
    at_most: float = math.inf,
    one_of: tuple[str, ...] = (),
    help: str = "",
    option: str = "",
    served: Any = None,
    rare: bool = False,
    secret: bool = False,
    numbered: bool = False,
) -> Any:
    """A field of the default's type, checked when it is set. Raises `InvalidParameter` by its name.

    Numbers are finite and within their bounds. With `help` it is an option of the commands, named
    `option` or as the field; `served` is its default there, if another; a `rare` one is not in
    their `--help`. A `secret` is in no text for people. A word that is `numbered` may name which of
    many, as "cuda:1".
    """

    def check(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        name = attribute.metadata["option"].replace("-", "_") or attribute.name
        wanted = type(default)
        # An engine reads its settings strictly: it would die of a wrong type, again and again.
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise InvalidParameter(name, f"must be {_TYPE_NAMES[wanted]}, not {value!r}")
        word = re.sub(r":\d+$", "", value) if numbered and type(value) is str else value
        if one_of and word not in one_of:
            words = ", ".join(filter(None, one_of))
            raise InvalidParameter(name, f"must be one of {words}, not {value!r}")
        if wanted in (int, float) and not at_least <= value < math.inf:
            raise InvalidParameter(name, f"must be at least {at_least:g}, not {value:g}")
        if wanted in (int, float) and value > at_most:
            raise InvalidParameter(name, f"must be at most {at_most:g}, not {value:g}")

    note = {"help": help, "option": option, "served": served, "rare": rare, "one_of": one_of}
    return attrs.field(default=default, validator=check, repr=not secret, metadata=note)


def below(prefix: str) -> Callable[[type, list["attrs.Attribute[Any]"]], list[Any]]:
    """Field transformer of rare settings that have dotted names, as `--PREFIX.FIELD`."""

    def name(_: type, fields: list["attrs.Attribute[Any]"]) -> list[Any]:
        found = []
        for each in fields:
            option = f"{prefix}.{each.name.replace('_', '-')}"
            found.append(each.evolve(metadata={**each.metadata, "option": option, "rare": True}))
        return found

    return name


@attrs.frozen(kw_only=True)
class EngineSettings:
    """Settings of an engine. Token counts unless a name says otherwise.

    Raises `InvalidParameter`, naming the field and its bound.
    """

    model: str = setting("")  # its folder
    # The commit that a branch or tag was resolved to: a part of the numerics id.
    revision: str = setting("", help="Branch, tag or commit of a model of the hub.")
    executor: str = setting(
        "auto",
        one_of=EXECUTORS,
        help="What computes; auto: native kernels, else torch. null computes nothing, for tests.",
    )
    isa: str = setting(
        "",
        one_of=("", *ISAS),
        help="Instruction set of the native kernels; empty: the best of this machine.",
        rare=True,
    )
    load_format: str = setting(
        "auto",
        one_of=LOAD_FORMATS,
        help="auto, or dummy for random weights from config.json.",
        rare=True,
    )
    device: str = setting(
        "cpu", one_of=DEVICES, numbered=True, help="Device that PyTorch computes on."
    )
    # Each computes every step whole, and the first one's tokens count.
    workers: int = setting(1, at_least=1, help="Worker processes of each engine.")
    # Native as is quickest, torch all cores but one.
    threads: int = setting(0, help="Threads of each worker; 0: automatic.")
    block_tokens: int = setting(BLOCK_TOKENS, at_least=1, at_most=STEP_TOKENS_MAX)
    max_model_len: int = setting(
        0, help="Maximum length of prompt plus answer, in tokens; 0: the model's."
    )
    # 0: as many as `max_num_seqs` sequences of full length need, within `kv_memory_bytes_max`.
    kv_blocks: int = setting(0, help="Size of the KV cache, in blocks of 16 tokens; 0: automatic.")
    max_num_seqs: int = setting(
        64,
        at_least=1,
        at_most=STEP_TOKENS_MAX,
        help="Maximum batch size: requests computed in one step.",
    )
    # Whole answers are those that wait by `merge_s`; four times is UNWATCHED_FACTOR.
    max_num_batched_tokens: int = setting(
        256,
        at_least=1,
        at_most=STEP_TOKENS_MAX,
        help="Maximum number of tokens computed in one step; bounds the gap between tokens. Four"
        " times as many while every client waits for a whole answer.",
    )
    # Half a second is a gap between two tokens that a reader notices.
    step_time_target_s: float = setting(
        0.5,
        help="Seconds that a step should not exceed, for which prompts are chunked; 0: none.",
        rare=True,
    )
    max_logprobs: int = setting(
        MAX_LOGPROBS_DEFAULT,
        at_most=LOGPROBS_MAX,
        help="Maximum number of alternatives per token that logprobs may ask for.",
        rare=True,
    )
    # Equals are served first come, first served.
    scheduling_policy: str = setting(
        "priority",
        one_of=SCHEDULING_POLICIES,
        help="priority: lower numbers first; fcfs: first come, first served, whatever they ask.",
    )
    # Steps that are scheduled and not applied.
    steps_in_flight: int = setting(
        2,
        at_least=1,
        at_most=STEPS_IN_FLIGHT_MAX,
        help="2: schedule the next step while one computes; 1: one after the other.",
        rare=True,
    )
    # Requests that begin with the same tokens share the KV blocks of what they have in common.
    prefix_cache: bool = setting(default=True, help="Reuse the KV cache of common prompt prefixes.")
    bitwise: bool = setting(default=True)
    kv_memory_bytes_max: int = setting(
        0,
        help="Maximum memory of the KV cache where --kv-blocks is 0; 0: 1 GiB, or most of a GPU's.",
        rare=True,
    )
    # Time without progress; every progress message starts it again.
    boot_timeout_s: float = setting(
        60.0,
        at_least=0.001,
        help="Seconds without progress after which a start has failed.",
        rare=True,
    )
    # A step that exceeds it ends the engine.
    step_timeout_s: float = setting(
        60.0,
        at_least=0.001,
        help="Seconds after which a step has failed, and its engine is restarted.",
        rare=True,
    )
    # After it requests are aborted.
    orphan_s: float = setting(
        10.0,
        at_least=0.001,
        help="Seconds that requests outlive the frontend that sent them.",
        rare=True,
    )
    kv_events_endpoint: str = setting(
        "", help="Address of engine 0 for KV events, as ipc://PATH or tcp://127.0.0.1:5557."
    )
    kv_events_replay_endpoint: str = setting(
        "", help="Address of engine 0 where past KV events are asked for."
    )
    kv_events_topic: str = setting("", help="Topic of KV events.", rare=True)
    # Token ids are what clients wrote.
    kv_events_token_ids: bool = setting(
        default=False, help="Put the token ids of prompts and answers into KV events."
    )
    kv_events_open: bool = setting(
        default=False, help="KV events may be published where other machines read them.", rare=True
    )
    # Both are vLLM's.
    kv_events_replay_batches: int = setting(
        10_000, at_least=1, at_most=2**20, help="Batches of KV events that are kept.", rare=True
    )
    kv_events_high_water: int = setting(
        100_000, at_least=1, at_most=2**20, help="Batches a subscriber may be behind.", rare=True
    )
    # Folder in which engine and workers note the spans of their steps; "" notes nothing.
    record_steps: str = setting("")
    null_step_s: float = setting(
        0.0, help="Seconds that each step of the null executor takes.", rare=True
    )

    def __attrs_post_init__(self) -> None:
        if self.executor != "null" and self.workers != 1:
            reason = "must be 1: an executor computes a model on one device"
            raise InvalidParameter("workers", f"{reason}. Use more engines instead")
        self._check_endpoint("kv_events_endpoint", self.kv_events_endpoint)
        self._check_endpoint("kv_events_replay_endpoint", self.kv_events_replay_endpoint)
        if self.kv_events_replay_endpoint and not self.kv_events_endpoint:
            raise InvalidParameter("kv_events_replay_endpoint", "needs kv_events_endpoint")

    def _check_endpoint(self, name: str, endpoint: str) -> None:
        try:
            if endpoint:
                check_public_endpoint(endpoint, is_open=self.kv_events_open)
        except BadEndpoint as error:
            raise InvalidParameter(name, error.reason) from error

    @property
    def medium(self) -> str:
        """Kind of memory that the KV cache is in, as KV events name it."""
        return "CPU" if self.device == "cpu" else "GPU"

    @property
    def step_tokens_max(self) -> int:
        """The most tokens that any step computes: what memory is taken for."""
        return UNWATCHED_FACTOR * self.max_num_batched_tokens

    def model_len_of(self, model_len: int) -> int:
        """The length to be served of a model whose own is `model_len`.

        Raises `InvalidParameter` for more than that.
        """
        if self.max_model_len > model_len:
            raise InvalidParameter("max_model_len", f"must be at most the model's own, {model_len}")
        return self.max_model_len or model_len

    def digest(self) -> str:
        """Hash of all values, hexadecimal; two engines with one digest have the same settings."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


def check_torch(settings: EngineSettings, *, has_torch: bool) -> None:
    """Raises `InvalidParameter` for settings that ask for PyTorch where it is not installed."""
    if has_torch:
        return
    for name, value, is_torch in (
        ("executor", settings.executor, settings.executor == "torch"),
        ("device", settings.device, settings.device != "cpu"),
    ):
        if is_torch:
            raise InvalidParameter(name, f"{value} needs PyTorch: {TORCH_REMEDY}")


def worker_module_ahead(settings: EngineSettings) -> str:
    """Module of a worker that is started with its engine, before it can know what to load."""
    if settings.executor == "torch" or settings.device != "cpu":
        return TORCH_WORKER_MODULE
    return WORKER_MODULE if settings.executor == "null" else NATIVE_WORKER_MODULE
