"""The executors there are, by name.

A fixed table whose entries import their module when they are chosen, so that a worker loads only
what its executor needs: one that computes nothing must not pay for torch. Must not know rings,
tasks or processes.
"""

import os

from ..config import EngineSettings
from ..errors import InvalidParameter
from .executor_interface import Pause, WorkerExecutor


def make_executor(settings: EngineSettings, rank: int, pause: Pause) -> WorkerExecutor:
    """The executor that the settings name, not loaded yet.

    Raises `InvalidParameter` for a name or a number of workers that does not exist.
    """
    match settings.executor:
        case "null":
            from .null_executor import NullExecutor

            return NullExecutor(settings, rank, pause)
        case "torch":
            # Read when torch loads its threads' library. Threads that wait for each other spin
            # for milliseconds by default: on a busy machine that made steps six times as long.
            os.environ.setdefault("GOMP_SPINCOUNT", "2000")
            from .torch_executor import TorchExecutor

            return TorchExecutor(settings, rank)
        case _:
            raise InvalidParameter("executor", f"{settings.executor!r} is not known to workers")
