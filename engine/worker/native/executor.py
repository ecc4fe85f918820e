"""The executor that computes with the native kernels on a CPU: the fast one, and bitwise.

Reads the folder that the torch executor reads, with the same checks, and packs each tensor as it
comes. No torch here.
"""

import logging
import pathlib
from ctypes import CDLL
from functools import partial

import attrs

from ...config import BLOCK_TOKENS, EngineSettings
from ...errors import InvalidParameter, ModelFolderError
from ...host import cores, memory_bytes
from ...kernels.binding import Bytes, declare_functions, take_memory
from ...kernels.layout import BF16_BYTES, Layout, kv_values, layout_fault
from ...kernels.library import NativeLibrary, NativeUnavailable, open_library
from ...kernels.model import NativeModel
from ...kernels.weights import DummyTensors, FolderTensors, Packer, TensorSource, plan_tensors
from ...messages import BootPhase
from ...model.weight_folder import open_weight_folder, rename_of
from ...model_config.config import ModelConfig, load_model_config
from ...step_messages import Step, StepResult, WorkerReady
from ..executor_interface import Progress, WaitMask, boot_phase
from ..kv_plan import plan_kv
from ..numerics import model_numerics_id
from .runner import NativeRunner

logger = logging.getLogger(__name__)
# Logits of a prompt's tokens, for logprobs, are computed so many rows at a time at least.
PROMPT_ROWS_MIN = 64
KV_LAYOUT = "layer,block,kv head,keys: channel pair,token|values: token pair,channel"


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
    """One model on the cores of this machine; `execute` is called by one thread at a time."""

    settings: EngineSettings
    rank: int
    _runner: NativeRunner | None = attrs.field(default=None, init=False)
    _isa: str = attrs.field(default="", init=False)

    @property
    def name(self) -> str:
        """With the instruction set, once it is loaded."""
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
            weights = _load_weights(settings, config, functions, report)
        with boot_phase(progress, BootPhase.KV_MEMORY):
            model = NativeModel.of(
                config,
                functions,
                weights,
                positions=plan.max_model_len,
                blocks=plan.blocks,
                threads=_threads(settings),
                tokens_max=settings.step_tokens_max,
                sequences_max=min(settings.max_num_seqs, settings.max_num_batched_tokens),
                logit_rows_max=max(settings.max_num_seqs, PROMPT_ROWS_MIN),
            )
            model.populate_cache(partial(progress, BootPhase.KV_MEMORY))
            self._runner = NativeRunner.of(
                model,
                rows=settings.max_num_seqs,
                blocks=plan.blocks,
                block_tokens=BLOCK_TOKENS,
                length=plan.max_model_len,
                fixed_threads=settings.threads > 0,
            )
        with boot_phase(progress, BootPhase.HASH_FILES):
            identity = _numerics_id(settings, config, library)
        return plan.ready(config, identity)

    def execute(self, step: Step, wait_mask: WaitMask) -> StepResult:
        """One forward pass and its samples; the time includes the wait for a mask."""
        assert self._runner is not None, "load comes first"
        return self._runner.run(step, wait_mask)


def _load_weights(
    settings: EngineSettings, config: ModelConfig, functions: CDLL, progress: partial[None]
) -> Bytes:
    layout = Layout.of(config)
    threads = _threads(settings)
    memory = take_memory(layout.size)

    def pack(source: TensorSource) -> None:
        Packer(config, layout, memory, functions, threads, source).pack_all()

    if settings.load_format == "dummy":
        pack(DummyTensors())
        return memory
    rename = rename_of(config.architecture)
    with open_weight_folder(pathlib.Path(settings.model), rename) as files:
        files.check(plan_tensors(config))
        pack(FolderTensors(files, progress))
    return memory


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


def _numerics_id(settings: EngineSettings, config: ModelConfig, library: NativeLibrary) -> str:
    facts = {
        "executor": "native",
        "isa": library.isa,
        # Any change of the kernels is a new revision: whether it changes bits is not decided here.
        "revision": library.source_hash,
        "dtype": "bfloat16",
        "kv_layout": KV_LAYOUT,
    }
    return model_numerics_id(facts, settings, config)
