"""Executors by name; each in a fresh interpreter loads no more than it needs."""

import inspect
import subprocess
import sys

import pytest

from triolet.engine.config import EngineSettings
from triolet.engine.errors import InvalidParameter
from triolet.engine.kernels.library import native_fault
from triolet.engine.worker.executor_interface import WorkerExecutor
from triolet.engine.worker.executors import make_executor
from triolet.engine.worker.native.executor import NativeExecutor
from triolet.engine.worker.null.executor import NullExecutor
from triolet.engine.worker.torch.executor import TorchExecutor


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


@pytest.mark.slow
@pytest.mark.skipif(bool(native_fault()), reason="no compiler, no kernels")
def test_a_native_worker_computes_without_torch() -> None:
    """From load to sampled tokens: a restart costs what a process imports."""
    code = """
import sys
import triolet.engine.worker.process as process
from triolet.engine.config import EngineSettings
from triolet.engine.model.bundled import bundled_model_folder
from triolet.engine.step_messages import NewRow, RowSampling, Step
settings = EngineSettings(model=str(bundled_model_folder()), kv_blocks=8)
executor = process.make_executor(settings, 0, lambda seconds: None)
executor.load(lambda phase, fraction: None)
sampling = RowSampling(
    temperature=1.0, top_k=5, top_p=0.9, min_p=0.0, seed=1, logprobs=2, prompt_logprobs=1
)
row = NewRow(row=0, token_ids=[5, 6, 7], prompt_tokens=3, computed_tokens=0, block_ids=[3],
             sampling=sampling)
step = Step(number=1, new=[row], rows=[0], token_counts=[3], samples=[True])
assert len(executor.execute(step, lambda: None).logprobs) == 2
print(executor.name.split()[0], sorted({"torch", "transformers"} & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "native []"


@pytest.mark.parametrize("executor", [NativeExecutor, NullExecutor, TorchExecutor])
def test_signatures_are_those_of_the_seam(executor: type) -> None:
    for name in ("load", "execute"):
        expected = inspect.signature(getattr(WorkerExecutor, name))
        assert inspect.signature(getattr(executor, name)) == expected
