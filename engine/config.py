"""Settings of one engine: a frozen class that the root sends in INIT and that READY's hash covers.

Everything here is plain data, so that it crosses the control socket as it is.
"""

import hashlib
import math
from typing import Any

import attrs
import msgspec

from .errors import InvalidParameter
from .sampling_params import LOGPROBS_MAX, MAX_LOGPROBS_DEFAULT

EXECUTORS = ("auto", "native", "torch", "null")
# Modules of worker processes, by name, not by import: a process boundary is an import boundary.
WORKER_MODULE = "triolet.engine.worker.process"
NATIVE_WORKER_MODULE = "triolet.engine.worker.native_process"
# Of native kernels, best first; `kernels/build` compiles them.
ISAS = ("avx512bf16", "avx512", "avx2", "plain")
LOAD_FORMATS = ("auto", "dummy")
SCHEDULING_POLICIES = ("priority", "fcfs")
# 16 tokens: the grain of the prefix cache in vLLM, and the tile of the bitwise linear layers.
BLOCK_TOKENS = 16
# Where no reader looks at single tokens a step may compute so many times the tokens: what it
# costs beside them is paid less often, and prompts are over sooner, so that more decode together.
UNWATCHED_FACTOR = 4
# More would only make aborts take longer: one step computes, one waits (as slots of the ring do).
STEPS_IN_FLIGHT_MAX = 2
# Longer than any prompt that one step computes whole; what is larger is a slip of the hand, and
# would take memory for so many tokens at the start.
STEP_TOKENS_MAX = 131_072


_WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


def check_setting(_instance: object, field: "attrs.Attribute[Any]", value: Any) -> None:
    """Raises `InvalidParameter` unless type and value are as the field's declaration says.

    The type is that of the default, else text. An engine reads its settings strictly: it would die
    of a wrong type, again and again.
    """
    wanted: Any = str if field.default is attrs.NOTHING else type(field.default)
    if type(value) is not wanted and not (wanted is float and type(value) is int):
        raise InvalidParameter(field.name, f"must be {_WORDS[wanted]}, not {value!r}")
    allowed = field.metadata.get("allowed")
    if allowed is not None and value not in allowed:
        names = ", ".join(filter(None, allowed))
        raise InvalidParameter(field.name, f"must be one of {names}, not {value!r}")
    if "bounds" in field.metadata:
        least, most = field.metadata["bounds"]
        if not math.isfinite(value) or value < least:
            raise InvalidParameter(field.name, f"must be at least {least:g}, not {value:g}")
        if value > most:
            raise InvalidParameter(field.name, f"must be at most {most:g}, not {value:g}")


def number(default: Any, *, at_least: float, at_most: float = math.inf) -> Any:
    """A field with bounds; the type is the annotation's."""
    bounds = {"bounds": (at_least, at_most)}
    return attrs.field(default=default, validator=check_setting, metadata=bounds)


def _plain(default: Any, allowed: tuple[str, ...] | None = None) -> Any:
    """A field of any value of its type, or one of these."""
    return attrs.field(default=default, validator=check_setting, metadata={"allowed": allowed})


@attrs.frozen(kw_only=True)
class EngineSettings:
    """What an engine needs to know. Token counts unless a name says otherwise.

    `kv_blocks` 0 means: as many as `max_num_seqs` sequences of full length need, within
    `kv_memory_bytes_max`, where 0 is 1 GiB, or what a GPU has free. `max_model_len` 0 means the
    model's own. `workers` is tensor × pipeline ranks. `step_timeout_s` is the deadline of one step;
    a step that exceeds it ends the engine.

    Raises `InvalidParameter`, naming the field and its bound.
    """

    model: str = attrs.field(validator=check_setting)
    executor: str = _plain("auto", EXECUTORS)  # native where it serves the model, else torch
    isa: str = _plain("", ("", *ISAS))  # of native kernels; "": the best that the processor has
    load_format: str = _plain("auto", LOAD_FORMATS)
    device: str = _plain("cpu")
    workers: int = number(1, at_least=1)
    # Of each worker; 0: native as is quickest, torch all cores but one.
    threads: int = number(0, at_least=0)
    block_tokens: int = number(BLOCK_TOKENS, at_least=1, at_most=STEP_TOKENS_MAX)
    kv_blocks: int = number(0, at_least=0)
    kv_memory_bytes_max: int = number(0, at_least=0)
    max_model_len: int = number(0, at_least=0)
    max_num_seqs: int = number(64, at_least=1, at_most=STEP_TOKENS_MAX)
    # One step computes at most so many tokens; bounds the gap that running requests see. Where all
    # of them wait for whole answers (`merge_s`) it is UNWATCHED_FACTOR times as many.
    max_num_batched_tokens: int = number(256, at_least=1, at_most=STEP_TOKENS_MAX)
    # The most alternatives that `logprobs` and `prompt_logprobs` may ask for.
    max_logprobs: int = number(MAX_LOGPROBS_DEFAULT, at_least=0, at_most=LOGPROBS_MAX)
    # Chunks of prompts are cut so that no step is predicted to take longer; 0: by tokens alone.
    # Half a second is a gap between two tokens that a reader notices.
    step_time_target_s: float = number(0.5, at_least=0)
    # Requests that begin with the same tokens share the KV blocks of what they have in common.
    prefix_cache: bool = _plain(True)
    # priority: the lower `priority` first, of equals first come, first served. fcfs: as they come,
    # whatever they ask for.
    scheduling_policy: str = _plain("priority", SCHEDULING_POLICIES)
    # Steps that are scheduled and not applied. 2: the next step is ready before one is computed.
    steps_in_flight: int = number(2, at_least=1, at_most=STEPS_IN_FLIGHT_MAX)
    bitwise: bool = _plain(True)
    # Without progress, re-armed by every progress message.
    boot_timeout_s: float = number(60.0, at_least=0.001)
    step_timeout_s: float = number(60.0, at_least=0.001)
    # Requests whose frontend is gone are aborted after so long.
    orphan_s: float = number(10.0, at_least=0.001)
    # Folder in which engine and workers note the spans of their steps; "" notes nothing.
    record_steps: str = _plain("")
    # The null executor waits so long in each step; for tests and demos.
    null_step_s: float = number(0.0, at_least=0)

    def __attrs_post_init__(self) -> None:
        if self.executor != "null" and self.workers != 1:
            reason = "must be 1: an executor computes a model on one device"
            raise InvalidParameter("workers", f"{reason}. Use more engines instead")

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


def worker_module_ahead(executor: str) -> str:
    """Of a worker that is started with its engine, before it can know what to load."""
    return NATIVE_WORKER_MODULE if executor in ("auto", "native") else WORKER_MODULE
