"""Executors by name, each from folder to token, and each with no more imported than it needs."""

import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch

from triolet.engine.config import EngineSettings
from triolet.engine.control_messages import BootPhase
from triolet.engine.errors import InvalidParameter, ModelFolderError
from triolet.engine.model.weight_folder import SINGLE_FILE
from triolet.engine.step_messages import StepResult, WorkerReady
from triolet.engine.worker.executor_interface import WorkerExecutor, no_pause
from triolet.engine.worker.executors import make_executor
from triolet.engine.worker.native.executor import NativeExecutor
from triolet.engine.worker.torch.executor import TorchExecutor

from ..kernels.small_models import needs_kernels
from ..model.tiny_models import write_config, write_model
from ..steps import compute, new_row, no_mask, sampling

NATIVE = pytest.param(
    NativeExecutor,
    id="native",
    marks=needs_kernels,
)
computing = pytest.mark.parametrize("kind", [pytest.param(TorchExecutor, id="torch"), NATIVE])
Kind = type[TorchExecutor] | type[NativeExecutor]
# Of one token of the tiny model: keys and values, layers, kv heads, head as it lies, bytes a value.
TOKEN_BYTES = {TorchExecutor: 2 * 2 * 2 * 16 * 4, NativeExecutor: 2 * 2 * 2 * 32 * 2}


def settings_of(folder: pathlib.Path, **changes: Any) -> EngineSettings:
    values = {"load_format": "dummy", "max_num_seqs": 4, "threads": 1}
    return EngineSettings(model=str(folder), **{**values, **changes})


def boot(executor: WorkerExecutor) -> WorkerReady:
    return executor.load(lambda phase, fraction: None)


def check_boot(executor: WorkerExecutor) -> None:
    """Of the folder of `write_model`, with four sequences: limits, and progress phase by phase."""
    progress: list[tuple[str, float]] = []
    found = executor.load(lambda *report: progress.append(report))
    assert (found.vocab_size, found.max_model_len, found.kv_blocks) == (101, 512, 4 * 32)
    assert found.bitwise
    phases = [BootPhase.LOAD_WEIGHTS, BootPhase.KV_MEMORY, BootPhase.HASH_FILES]
    assert list(dict.fromkeys(phase for phase, _ in progress)) == phases
    for phase in phases:
        fractions = [fraction for name, fraction in progress if name == phase]
        assert fractions == sorted(fractions)
        assert (fractions[0], fractions[-1]) == (0.0, 1.0)


def first_step(executor: WorkerExecutor) -> StepResult:
    """A prompt of three tokens in one step, and its first token."""
    row = new_row(0, [5, 6, 7], [3], sampling=sampling(seed=4))
    result = executor.execute(compute(9, (0, 3, True), new=[row]), no_mask)
    assert (result.number, result.rows) == (9, [0])
    assert result.compute_s > 0
    return result


def change_a_weight(folder: pathlib.Path) -> None:
    """One bit of the last value."""
    content = bytearray((folder / SINGLE_FILE).read_bytes())
    content[-1] ^= 1
    (folder / SINGLE_FILE).write_bytes(content)


def ready(kind: Kind, folder: pathlib.Path, **changes: Any) -> WorkerReady:
    return boot(kind(settings_of(folder, **changes), 0))


@computing
def test_from_folder_to_tokens(tmp_path: pathlib.Path, kind: Kind) -> None:
    write_model(tmp_path)
    executor = kind(settings_of(tmp_path, load_format="auto"), 0)
    check_boot(executor)
    tokens = first_step(executor).token_ids
    assert torch.get_num_threads() == 1
    again = kind(settings_of(tmp_path, load_format="auto"), 0)
    boot(again)
    assert first_step(again).token_ids == tokens


@computing
def test_kv_memory_is_counted_in_bytes_of_this_model(tmp_path: pathlib.Path, kind: Kind) -> None:
    found = ready(kind, write_config(tmp_path), kv_memory_bytes_max=3 * 16 * TOKEN_BYTES[kind])
    assert (found.kv_blocks, found.max_model_len) == (3, 48)


@computing
def test_the_numerics_id_is_of_what_decides_about_bits(tmp_path: pathlib.Path, kind: Kind) -> None:
    write_model(tmp_path)
    one = ready(kind, tmp_path, load_format="auto").numerics_id
    assert one.startswith("torch-" if kind is TorchExecutor else "native-")
    same = ready(kind, tmp_path, load_format="auto", threads=2, max_num_seqs=7)
    assert same.numerics_id == one
    torch.set_num_threads(1)
    dummy = ready(kind, tmp_path).numerics_id
    change_a_weight(tmp_path)
    changed = ready(kind, tmp_path, load_format="auto").numerics_id
    assert len({one, dummy, changed}) == 3


@computing
def test_memory_that_no_machine_has_is_refused_before_it_is_asked_for(
    tmp_path: pathlib.Path, kind: Kind
) -> None:
    with pytest.raises(InvalidParameter, match="kv_blocks must be at most"):
        ready(kind, write_config(tmp_path), kv_blocks=10**12)
    wide = {"hidden_size": 2**18, "intermediate_size": 2**18, "num_hidden_layers": 64}
    where = "torch.float32, and cpu" if kind is TorchExecutor else "bfloat16, and this machine"
    with pytest.raises(ModelFolderError, match=f"GiB for its weights as {where} has"):
        ready(kind, write_config(tmp_path, **wide))


@computing
def test_a_folder_is_checked_before_its_weights_are_read(
    tmp_path: pathlib.Path, kind: Kind
) -> None:
    with pytest.raises(ModelFolderError, match="safetensors"):
        ready(kind, write_config(tmp_path), load_format="auto")
    write_model(tmp_path)
    write_config(tmp_path, num_hidden_layers=3)
    with pytest.raises(ModelFolderError, match=r"has no tensor model\.layers\.2\."):
        ready(kind, tmp_path, load_format="auto")


def test_executors_by_name() -> None:
    for name, expected in (
        ("null", "NullExecutor"),
        ("torch", "TorchExecutor"),
        ("native", "NativeExecutor"),
    ):
        settings = EngineSettings(model="m", executor=name)
        assert type(make_executor(settings, 0, lambda seconds: None)).__name__ == expected


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
@needs_kernels
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


def test_auto_without_kernels_and_torch_says_what_to_install(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path)
    settings = settings_of(tmp_path, executor="auto", block_tokens=8)  # of torch alone
    assert isinstance(make_executor(settings, 0, no_pause), TorchExecutor)
    monkeypatch.setitem(sys.modules, "torch", None)
    sentence = "blocks of 16 tokens, and PyTorch is not installed .pip install 'triolet.torch.'"
    with pytest.raises(InvalidParameter, match=sentence):
        make_executor(settings, 0, no_pause)
