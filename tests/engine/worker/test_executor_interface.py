"""Every executor that can be chosen fits the seam."""

import inspect

import pytest

from triolet.engine.worker.executor_interface import WorkerExecutor
from triolet.engine.worker.null.executor import NullExecutor
from triolet.engine.worker.torch.executor import TorchExecutor


@pytest.mark.parametrize("executor", [NullExecutor, TorchExecutor])
def test_signatures_are_those_of_the_seam(executor: type) -> None:
    for name in ("load", "execute"):
        expected = inspect.signature(getattr(WorkerExecutor, name))
        assert inspect.signature(getattr(executor, name)) == expected
