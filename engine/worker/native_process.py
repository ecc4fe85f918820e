"""The worker process that will compute with the native kernels: it loads them before it is told so.

Started ahead, with its engine (`nurseries.spawned`): while that one still imports and shakes hands,
this one has time. Told of another executor it is a worker like any other. Must not know more than
`process` does.
"""

from ...nurseries.processes.child import run_child
from .native import executor as native_executor
from .process import main

__all__ = ["main", "native_executor"]

if __name__ == "__main__":
    run_child(main)
