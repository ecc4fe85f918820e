"""The executor that computes with torch, on a CPU or a CUDA device by the same code.

On a CPU it is bitwise unless the settings say otherwise, and then the oracle that faster executors
are compared with. Must not know rings, tasks or processes.
"""

import logging
import pathlib
import time
from functools import partial

import attrs
import torch

from ..config import EngineSettings
from ..errors import InvalidParameter
from ..messages import BootPhase
from ..model.layers import has_packed_linear
from ..model.registry import compute_dtype, load_model, memory_bytes
from ..model.weight_folder import numerics_files
from ..model_config import CONFIG_FILE, ModelConfig, load_model_config
from ..step_messages import Step, StepResult, WorkerReady
from .executor_interface import Progress, WaitMask
from .host import threads_default
from .kv_plan import KvPlan, plan_kv
from .model_runner import ModelRunner
from .numerics import numerics_id, processor_name

logger = logging.getLogger(__name__)
# Counts changes of layers, attention or sampler that change any bit of any result.
REVISION = 2
# Told once by each worker, since it is a matter of the installation and not of the model.
NO_PACKED_LINEAR = (
    "torch %s lacks the oneDNN operators that our linear layers use on a CPU; strips take their"
    " place: as bitwise, and about half as fast"
)
KV_LAYOUT = "layer,kv head,slot,channel"


@attrs.define(eq=False)
class TorchExecutor:
    """One model on one device; `execute` is called by one thread at a time."""

    settings: EngineSettings
    rank: int
    name: str = attrs.field(default="torch", init=False)
    _runner: ModelRunner | None = attrs.field(default=None, init=False)

    def load(self, progress: Progress) -> WorkerReady:
        """Read, cast and place the weights, take the KV memory, hash the files."""
        settings = self.settings
        folder = pathlib.Path(settings.model)
        device = _device(settings.device)
        torch.set_num_threads(settings.threads or threads_default())
        config = load_model_config(folder)
        dtype = compute_dtype(config, bitwise=settings.bitwise)
        token_bytes = 2 * config.layers * config.kv_heads * config.head_size * dtype.itemsize
        plan = plan_kv(settings, model_len=config.max_model_len, token_bytes=token_bytes)
        _check_memory(plan, settings.block_tokens * token_bytes, device)
        if settings.bitwise and device.type == "cpu" and not has_packed_linear():
            logger.warning(NO_PACKED_LINEAR, torch.__version__)
        progress(BootPhase.LOAD_WEIGHTS, 0.0)
        model = load_model(
            folder,
            config,
            load_format=settings.load_format,
            bitwise=settings.bitwise,
            positions=plan.max_model_len,
            device=device,
            progress=partial(progress, BootPhase.LOAD_WEIGHTS),
        )
        progress(BootPhase.LOAD_WEIGHTS, 1.0)
        progress(BootPhase.KV_MEMORY, 0.0)
        self._runner = ModelRunner.of(
            model,
            rows=settings.max_num_seqs,
            blocks=plan.blocks,
            block_tokens=settings.block_tokens,
            length=plan.max_model_len,
        )
        progress(BootPhase.KV_MEMORY, 1.0)
        progress(BootPhase.HASH_FILES, 0.0)
        identity = _numerics_id(settings, config, device, dtype)
        progress(BootPhase.HASH_FILES, 1.0)
        return WorkerReady(
            kv_blocks=plan.blocks,
            max_model_len=plan.max_model_len,
            vocab_size=config.vocab_size,
            numerics_id=identity,
            # Not claimed for CUDA: its library may choose another kernel for another batch.
            bitwise=settings.bitwise and device.type == "cpu",
        )

    def execute(self, step: Step, wait_mask: WaitMask) -> StepResult:
        """One forward pass and its samples; the time includes the wait for a mask."""
        assert self._runner is not None, "load comes first"
        begin = time.perf_counter()
        result = self._runner.run(step, wait_mask)
        return attrs.evolve(result, compute_s=time.perf_counter() - begin)


def _check_memory(plan: KvPlan, block_bytes: int, device: torch.device) -> None:
    there = memory_bytes(device)
    if plan.blocks * block_bytes > there:
        fit = there // block_bytes
        raise InvalidParameter("kv_blocks", f"must be at most {fit}, which is all of {device}")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidParameter("device", f"{name!r} is not known to torch") from error
    if device.type not in ("cpu", "cuda"):
        raise InvalidParameter("device", f"must be cpu or cuda, not {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidParameter("device", f"{name!r} is not available on this machine")
    return device


def _numerics_id(
    settings: EngineSettings, config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> str:
    folder = pathlib.Path(settings.model)
    dummy = settings.load_format == "dummy"
    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    else:
        hardware = f"{torch.backends.cpu.get_cpu_capability()} {processor_name()}"
    facts = {
        "executor": "torch",
        "revision": REVISION,
        "torch": torch.__version__,
        "hardware": hardware,
        "dtype": dtype,
        "bitwise": settings.bitwise,
        "packed_linear": has_packed_linear(),
        "workers": settings.workers,
        "kv_layout": KV_LAYOUT,
        "load_format": "dummy" if dummy else "weights",
        "architecture": config.architecture,
    }
    return numerics_id(facts, [folder / CONFIG_FILE] if dummy else numerics_files(folder))
