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


@attrs.frozen(kw_only=True)
class EngineSettings:
    """What an engine needs to know. Token counts unless a name says otherwise.

    `kv_blocks` 0 means: as many as `max_num_seqs` sequences of full length need, within
    `kv_memory_bytes_max`, where 0 is 1 GiB, or what a GPU has free. `max_model_len` 0 means the
    model's own. `workers` is tensor × pipeline ranks. `step_timeout_s` is the deadline of one step;
    a step that exceeds it ends the engine.

    Raises `InvalidParameter`, naming the field and its bound.
    """

    model: str
    executor: str = "auto"  # native where it serves the model, else torch
    isa: str = ""  # of native kernels; empty: the best that the processor has
    load_format: str = "auto"
    device: str = "cpu"
    workers: int = 1
    threads: int = 0  # of each worker; 0: native as is quickest, torch all cores but one
    block_tokens: int = BLOCK_TOKENS
    kv_blocks: int = 0
    kv_memory_bytes_max: int = 0
    max_model_len: int = 0
    max_num_seqs: int = 64
    # One step computes at most so many tokens; bounds the gap that running requests see. Where all
    # of them wait for whole answers (`merge_s`) it is UNWATCHED_FACTOR times as many.
    max_num_batched_tokens: int = 256
    # The most alternatives that `logprobs` and `prompt_logprobs` may ask for.
    max_logprobs: int = MAX_LOGPROBS_DEFAULT
    # Chunks of prompts are cut so that no step is predicted to take longer; 0: by tokens alone.
    # Half a second is a gap between two tokens that a reader notices.
    step_time_target_s: float = 0.5
    # Requests that begin with the same tokens share the KV blocks of what they have in common.
    prefix_cache: bool = True
    # priority: the lower `priority` first, of equals first come, first served. fcfs: as they come,
    # whatever they ask for.
    scheduling_policy: str = "priority"
    # Steps that are scheduled and not applied. 2: the next step is ready before one is computed.
    steps_in_flight: int = 2
    bitwise: bool = True
    boot_timeout_s: float = 60.0  # without progress, re-armed by every progress message
    step_timeout_s: float = 60.0
    orphan_s: float = 10.0  # requests whose frontend is gone are aborted after so long
    # Folder in which engine and workers note the spans of their steps; "" notes nothing.
    record_steps: str = ""
    null_step_s: float = 0.0  # the null executor waits so long in each step; for tests and demos

    def __attrs_post_init__(self) -> None:
        values = attrs.asdict(self)  # attrs slots have no `__dict__`
        for field in attrs.fields(EngineSettings):
            check_type(field, values[field.name])
        _one_of("executor", self.executor, EXECUTORS)
        _one_of("scheduling_policy", self.scheduling_policy, SCHEDULING_POLICIES)
        _one_of("load_format", self.load_format, LOAD_FORMATS)
        if self.isa:
            _one_of("isa", self.isa, ISAS)
        for name in ("workers", "block_tokens", "max_num_seqs", "max_num_batched_tokens"):
            check_at_least(name, values[name], 1)
        for name in ("block_tokens", "max_num_seqs", "max_num_batched_tokens"):
            if values[name] > STEP_TOKENS_MAX:
                raise InvalidParameter(name, f"must be at most {STEP_TOKENS_MAX}")
        if not 1 <= self.steps_in_flight <= STEPS_IN_FLIGHT_MAX:
            raise InvalidParameter("steps_in_flight", f"must be from 1 to {STEPS_IN_FLIGHT_MAX}")
        for name in (
            "threads",
            "kv_blocks",
            "kv_memory_bytes_max",
            "max_model_len",
            "null_step_s",
            "step_time_target_s",
        ):
            check_at_least(name, values[name], 0)
        if not 0 <= self.max_logprobs <= LOGPROBS_MAX:
            raise InvalidParameter("max_logprobs", f"must be from 0 to {LOGPROBS_MAX}")
        if self.executor != "null" and self.workers != 1:
            reason = "must be 1: an executor computes a model on one device"
            raise InvalidParameter("workers", f"{reason}. Use more engines instead")
        for name in ("boot_timeout_s", "step_timeout_s", "orphan_s"):
            check_at_least(name, values[name], 0.001)

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


_WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


def check_type(field: "attrs.Attribute[Any]", value: object) -> None:
    """Raises `InvalidParameter` unless it is of the type of the field's default, else text.

    An engine reads its settings strictly: it would die of a wrong type, again and again.
    """
    wanted = str if field.default is attrs.NOTHING else type(field.default)
    if type(value) is not wanted and not (wanted is float and type(value) is int):
        raise InvalidParameter(field.name, f"must be {_WORDS[wanted]}, not {value!r}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidParameter(name, f"must be one of {', '.join(allowed)}, not {value!r}")


def check_at_least(name: str, value: float, bound: float) -> None:
    """Raises `InvalidParameter` unless it is finite and not below."""
    if not math.isfinite(value) or value < bound:
        raise InvalidParameter(name, f"must be at least {bound:g}, not {value:g}")


def worker_module_ahead(executor: str) -> str:
    """Of a worker that is started with its engine, before it can know what to load."""
    return NATIVE_WORKER_MODULE if executor in ("auto", "native") else WORKER_MODULE
