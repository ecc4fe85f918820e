"""Registry of executors, by name.

A fixed table whose entries import their module when they are chosen, so that a worker loads only
what its executor needs: one that computes nothing must not pay for torch.
"""

import logging

from ..config import TORCH_REMEDY, EngineSettings
from ..errors import InvalidParameter
from ..host import has_torch
from ..place_memory import PlaceMemory
from .executor_interface import Pause, WorkerExecutor

logger = logging.getLogger(__name__)


def make_executor(
    settings: EngineSettings, rank: int, pause: Pause, memory: PlaceMemory | None = None
) -> WorkerExecutor:
    """The executor that the settings name, not loaded yet.

    `memory` is for who can share it, and stays open.

    Raises `ModelFolderError` where "auto" cannot read what it has to decide by, and
    `InvalidParameter` where it finds nothing that computes the model.
    """
    name = _best(settings) if settings.executor == "auto" else settings.executor
    if name == "null":
        from .null.executor import NullExecutor

        return NullExecutor(settings, rank, pause)
    if name == "torch":
        from .torch.executor import TorchExecutor

        return TorchExecutor(settings, rank)
    from .native.executor import NativeExecutor

    return NativeExecutor(settings, rank, pause, memory)


def _best(settings: EngineSettings) -> str:
    """Native where it serves the model, else torch; a choice that costs speed is logged. On a GPU
    there is no other.
    """
    if settings.device != "cpu":
        return "torch"
    from ..model_config.config import load_model_config
    from .native.executor import native_fault

    if fault := native_fault(settings, load_model_config(settings.model)):
        if not has_torch():
            reason = (
                f"finds nothing that computes this model: {fault}, and PyTorch is not installed"
            )
            raise InvalidParameter("executor", f"{reason} ({TORCH_REMEDY})")
        logger.warning("computing with torch, which is slower: %s", fault)
        return "torch"
    return "native"
