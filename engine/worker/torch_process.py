"""The worker process that imports torch before it gets its settings.

As `native_process`: started ahead, or a spare. A spare is forked, so nothing here may start a
thread or touch a GPU: a child that finds its parent's CUDA cannot have its own.
"""

from ...nurseries.processes.child import run_child
from .process import main
from .torch import executor as torch_executor

if torch_executor.BUILT_FOR_CUDA:
    # Triton takes as long as all the rest of ours.
    from .torch import tile_forward as tile_forward

__all__ = ["main", "torch_executor"]

if __name__ == "__main__":
    run_child(main)
