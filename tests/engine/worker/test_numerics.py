"""What an executor is loaded with: numerics id, KV memory plan; and its outcomes."""

import pathlib
from typing import Any

import attrs
import pytest

from triolet.engine.config import EngineSettings
from triolet.engine.errors import InvalidParameter
from triolet.engine.model.bundled import bundled_model_folder
from triolet.engine.model_config.config import load_model_config
from triolet.engine.step_messages import RowLogprobs, StepResult
from triolet.engine.worker.executor_interface import StepOutcome
from triolet.engine.worker.kv_plan import KV_MEMORY_BYTES_DEFAULT, KvPlan, device_kv_bytes, plan_kv
from triolet.engine.worker.numerics import model_numerics_id, numerics_id, processor_name

FACTS = {"executor": "torch", "dtype": "float32"}


def write(folder: pathlib.Path, content: bytes = b"weights") -> list[pathlib.Path]:
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(content)
    (folder / "config.json").write_bytes(b"{}")
    return [folder / "model.safetensors", folder / "config.json"]


def test_equal_files_in_another_folder_have_the_same_id(tmp_path: pathlib.Path) -> None:
    one = numerics_id(FACTS, write(tmp_path / "one"))
    other = numerics_id(dict(reversed(FACTS.items())), reversed(write(tmp_path / "other")))
    assert one == other
    assert one.startswith("torch-")
    assert len(one) == len("torch-") + 16


def test_weights_facts_and_names_change_it(tmp_path: pathlib.Path) -> None:
    files = write(tmp_path)
    ids = {numerics_id(FACTS, files), numerics_id(FACTS, files[:1])}
    ids.add(numerics_id({**FACTS, "dtype": "bfloat16"}, files))
    write(tmp_path, b"weighted")
    ids.add(numerics_id(FACTS, files))
    write(tmp_path, b"weighteD")
    ids.add(numerics_id(FACTS, files))
    assert len(ids) == 5


def test_a_commit_of_the_hub_changes_it(tmp_path: pathlib.Path) -> None:
    write(tmp_path)
    config = load_model_config(bundled_model_folder())
    settings = EngineSettings(model=str(tmp_path))
    plain = model_numerics_id(FACTS, settings, config)
    pinned = [attrs.evolve(settings, revision=commit) for commit in ("a", "b")]
    ids = [model_numerics_id(FACTS, each, config) for each in pinned]
    assert len({plain, *ids}) == 3


def test_processor_name(tmp_path: pathlib.Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    one = (
        "processor: {}\nvendor_id\t: Maker\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: Fast\n\n"
    )
    cpuinfo.write_text(one.format(0) + one.format(1))
    assert processor_name(cpuinfo) == "Maker/25/1/Fast"
    cpuinfo.write_text("nothing: known\n")
    assert processor_name(cpuinfo) == "unknown"
    assert processor_name(tmp_path / "gone") == "unknown"


@pytest.mark.parametrize(
    ("changes", "model_len", "token_bytes", "expected"),
    [
        # Enough memory: every sequence may be of full length; lengths are rounded up to blocks.
        ({"max_num_seqs": 4}, 100, 10, KvPlan(4 * 7, 100)),
        ({"max_num_seqs": 4, "max_model_len": 33}, 100, 10, KvPlan(4 * 3, 33)),
        # Memory bounds: 1600 bytes are ten blocks of 160.
        ({"kv_memory_bytes_max": 1600}, 100, 10, KvPlan(10, 100)),
        ({"kv_memory_bytes_max": 480}, 100, 10, KvPlan(3, 48)),
        # Given blocks are taken as they are, whatever they cost.
        ({"kv_blocks": 5, "kv_memory_bytes_max": 1}, 100, 10, KvPlan(5, 80)),
        # Nothing is kept: memory does not bound.
        ({"kv_memory_bytes_max": 1, "max_num_seqs": 2}, 100, 0, KvPlan(14, 100)),
    ],
)
def test_plan(changes: dict[str, Any], model_len: int, token_bytes: int, expected: KvPlan) -> None:
    settings = EngineSettings(model="m", **changes)
    assert plan_kv(settings, model_len=model_len, token_bytes=token_bytes) == expected


def test_what_settings_leave_open_is_what_there_is() -> None:
    settings = EngineSettings(model="m", max_num_seqs=4)
    assert plan_kv(settings, model_len=100, token_bytes=10, memory_bytes=480) == KvPlan(3, 48)
    free = device_kv_bytes(1000, weight_bytes=300, step_bytes=100)
    assert (free, device_kv_bytes(1000, weight_bytes=850, step_bytes=100)) == (500, 0)
    token_bytes = KV_MEMORY_BYTES_DEFAULT // 160
    assert plan_kv(settings, model_len=100, token_bytes=token_bytes) == KvPlan(10, 100)


@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        ({"max_model_len": 101}, "max_model_len"),
        ({"max_model_len": 64, "kv_memory_bytes_max": 480}, "max_model_len"),
        ({"max_model_len": 64, "kv_blocks": 3}, "max_model_len"),
        ({"kv_memory_bytes_max": 159}, "kv_memory_bytes_max"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], parameter: str) -> None:
    settings = EngineSettings(model="m", **changes)
    with pytest.raises(InvalidParameter) as caught:
        plan_kv(settings, model_len=100, token_bytes=10)
    assert caught.value.parameter == parameter


ROWS = [4, 2, 7]


def logprobs(row: int) -> RowLogprobs:
    return RowLogprobs(row=row, first=0, width=0, token_ids=b"", logprobs=b"", ranks=b"")


def test_all_rows_sampled() -> None:
    outcome = StepOutcome()
    outcome.logprobs.append(logprobs(2))
    assert outcome.result(9, ROWS, [40, 20, 70]) == StepResult(
        9, [4, 2, 7], [40, 20, 70], logprobs=[logprobs(2)]
    )


def test_of_a_failed_row_nothing_else_is_told() -> None:
    outcome = StepOutcome()
    outcome.logprobs += [logprobs(2), logprobs(7), logprobs(5)]
    outcome.fail(2, "first")
    outcome.fail(2, "second")
    outcome.fail(5, "told when it is to sample")
    assert outcome.result(9, ROWS, [40, 20, 70]) == StepResult(
        9,
        [4, 7],
        [40, 70],
        logprobs=[logprobs(7)],
        failed_rows=[(2, "first")],
    )
