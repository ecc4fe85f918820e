"""The executor that computes with the native kernels on a CPU: the fast one, and bitwise.

Reads the folder that the torch executor reads, with the same checks, and packs each tensor as it
comes; or maps what another worker of its run has packed (`shared_weights`), and takes over the
memory for keys and values from the worker before it. No torch here.
"""

import logging
import os
import pathlib
from collections.abc import Callable
from functools import partial

import attrs

from ...block_names import drop_names
from ...config import BLOCK_TOKENS, EngineSettings
from ...control_messages import BootPhase
from ...errors import InvalidParameter, ModelFolderError
from ...host import cores, memory_bytes
from ...kernels.binding import Bytes, declare_functions
from ...kernels.layout import BF16_BYTES, Layout, kv_values, layout_fault
from ...kernels.library import NativeUnavailable, open_library
from ...kernels.model import NativeModel, cache_bytes
from ...kernels.shared_memory import SharedMapping, has_all_pages, whole_pages
from ...model_config.config import ModelConfig, load_model_config
from ...place_memory import PlaceMemory
from ...step_messages import KVMemory, Step, StepResult, WorkerReady
from ..executor_interface import Pause, Progress, WaitMask, boot_phase, no_pause
from ..kv_plan import plan_kv
from .runner import NativeRunner
from .weights_loader import WeightsLoader

logger = logging.getLogger(__name__)
# Logits of a prompt's tokens, for logprobs, are computed so many rows at a time at least.
PROMPT_ROWS_MIN = 64


def native_fault(settings: EngineSettings, config: ModelConfig) -> str:
    """Why the native executor does not serve these settings and this model, or an empty string."""
    if settings.device != "cpu":
        return f"the native kernels compute on a CPU, not on {settings.device}"
    if settings.block_tokens != BLOCK_TOKENS:
        return f"the native kernels have blocks of {BLOCK_TOKENS} tokens"
    if fault := layout_fault(config):
        return fault
    try:
        open_library(settings.isa)
    except NativeUnavailable as unavailable:
        return str(unavailable)
    return ""


@attrs.define(eq=False)
class NativeExecutor:
    """Model on the cores of this machine; `execute` is called by one thread at a time."""

    settings: EngineSettings
    rank: int
    _pause: Pause = no_pause
    # Memory that outlives this process, where there is.
    _memory: PlaceMemory | None = None
    _runner: NativeRunner | None = attrs.field(default=None, init=False)
    _isa: str = attrs.field(default="", init=False)

    @property
    def name(self) -> str:
        """Name with the instruction set, once it is loaded."""
        return f"native {self._isa}".strip()

    def load(self, progress: Progress) -> WorkerReady:
        """Pack the weights, take the KV memory, hash the files."""
        settings = self.settings
        folder = pathlib.Path(settings.model)
        config = load_model_config(folder)
        if fault := native_fault(settings, config):
            raise InvalidParameter("executor", f"cannot be native: {fault}")
        library = open_library(settings.isa)
        self._isa = library.isa
        logger.info("computing with %s, on at most %d threads", self.name, _threads(settings))
        block_bytes = kv_values(config) * BF16_BYTES
        plan = plan_kv(
            settings, model_len=config.max_model_len, token_bytes=block_bytes // BLOCK_TOKENS
        )
        plan.check_memory(memory_bytes(), block_bytes=block_bytes, where="memory there is")
        _check_weights(folder, config)
        functions = declare_functions(library)
        with boot_phase(progress, BootPhase.LOAD_WEIGHTS):
            report = partial(progress, BootPhase.LOAD_WEIGHTS)
            loader = WeightsLoader(
                settings, config, library, functions,
                positions=plan.max_model_len, threads=_threads(settings), progress=report,
            )  # fmt: skip
            loaded = loader.load(self._memory, self._pause)
        with boot_phase(progress, BootPhase.KV_MEMORY):
            report = partial(progress, BootPhase.KV_MEMORY)
            size = cache_bytes(config, plan.blocks)
            is_found = _has_cache(self._memory, size)
            cache = _take_cache(self._memory, size, report)
            model = NativeModel.of(
                config,
                functions,
                loaded.memory,
                positions=plan.max_model_len,
                blocks=plan.blocks,
                threads=_threads(settings),
                tokens_max=settings.step_tokens_max,
                sequences_max=min(settings.max_num_seqs, settings.max_num_batched_tokens),
                logit_rows_max=max(settings.max_num_seqs, PROMPT_ROWS_MIN),
                rotations=loaded.rotations,
                cache=cache,
            )
            if cache is None:
                model.populate_cache(report)
            self._runner = NativeRunner.of(
                model,
                rows=settings.max_num_seqs,
                blocks=plan.blocks,
                block_tokens=BLOCK_TOKENS,
                length=plan.max_model_len,
                fixed_threads=settings.threads > 0,
            )
        with boot_phase(progress, BootPhase.HASH_FILES):
            identity = loaded.numerics_id or loader.numerics_id()
        kv_memory = KVMemory.FOUND if is_found else KVMemory.FRESH
        return attrs.evolve(
            plan.ready(config, identity),
            kv_memory=KVMemory.OWN if cache is None else kv_memory,
        )

    def execute(self, step: Step, wait_mask: WaitMask) -> StepResult:
        """Compute a forward pass and its samples; the time includes the wait for a mask."""
        assert self._runner is not None, "load comes first"
        return self._runner.run(step, wait_mask)


def _has_cache(memory: PlaceMemory | None, size: int) -> bool:
    """Whether there are keys and values of another worker of this size."""
    return memory is not None and has_all_pages(memory.cache, whole_pages(size))


def _take_cache(
    memory: PlaceMemory | None, size: int, progress: Callable[[float], None]
) -> Bytes | None:
    """Memory for keys and values that the next worker finds with all its pages; None: no such.

    What the last one has left in it is no harm: a token that nothing was written to is not read
    as anything but its weight zero, in a life as after it. The engine knows what may be read.
    """
    if memory is None:
        return None
    fd, whole = memory.cache, whole_pages(size)
    if not has_all_pages(fd, whole):
        drop_names(memory.names)
        os.ftruncate(fd, 0)
        os.ftruncate(fd, whole)
    mapping = SharedMapping.of(fd, whole, writable=True)
    if has_all_pages(fd, whole) or mapping.take_huge_pages(progress):
        return mapping.bytes[:size]
    mapping.close()
    os.ftruncate(fd, 0)
    return None


def _threads(settings: EngineSettings) -> int:
    return settings.threads or cores()


def _check_weights(folder: pathlib.Path, config: ModelConfig) -> None:
    there, needed = memory_bytes(), Layout.of(config).size
    if needed > there:
        raise ModelFolderError(
            folder,
            f"needs {needed / 2**30:.1f} GiB for its weights as bfloat16, and this machine has"
            f" {there / 2**30:.1f} GiB",
        )
