"""Executors by name; each in a fresh interpreter loads no more than it needs."""

import subprocess
import sys

import pytest

from triolet.engine.config import EngineSettings
from triolet.engine.errors import InvalidParameter
from triolet.engine.worker.executors import make_executor


def test_executors_by_name() -> None:
    for name, expected in (
        ("null", "NullExecutor"),
        ("torch", "TorchExecutor"),
        ("native", "NativeExecutor"),
    ):
        settings = EngineSettings(model="m", executor=name)
        assert type(make_executor(settings, 0, lambda seconds: None)).__name__ == expected


def test_an_unknown_name_is_refused() -> None:
    settings = EngineSettings(model="m")
    # Settings refuse it first; a worker of another version might not.
    object.__setattr__(settings, "executor", "cuda")
    with pytest.raises(InvalidParameter, match="executor"):
        make_executor(settings, 0, lambda seconds: None)


@pytest.mark.slow
def test_a_null_worker_loads_no_tensor_library() -> None:
    code = (
        "import sys; import triolet.engine.worker.process as p;"
        "from triolet.engine.config import EngineSettings as E;"
        "p.make_executor(E(model='m', executor='null'), 0, lambda s: None);"
        "print(sorted({'torch', 'numpy', 'transformers', 'safetensors'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
