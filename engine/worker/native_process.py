"""The worker process that loads the native kernels before it gets its settings.

Started ahead, with its engine (`nurseries.processes.spawned`): while that one still imports and
shakes hands, this one has time. With another executor it is a worker like any other.
"""

from ...nurseries.processes.child import run_child
from ..kernels.library import native_fault
from .native import executor as native_executor
from .process import main

__all__ = ["main", "native_executor"]

if __name__ == "__main__":
    native_fault()  # opens them; why it could not is said by who needs them
    run_child(main)
