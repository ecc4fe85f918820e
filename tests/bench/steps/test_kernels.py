"""Cases on a small model with random weights: every case is timed and has its floor."""

import pathlib

import attrs
import pytest

from triolet.bench.steps.kernels import measure_kernels, usual_cases
from triolet.bench.steps.shapes import TINY, shape_folder
from triolet.engine.kernels.library import native_fault

MINI = attrs.evolve(TINY, name="mini", vocab_size=600, hidden_size=32, intermediate_size=48)


def test_the_usual_cases_are_batches_a_prompt_and_both() -> None:
    cases = usual_cases([1, 4], context=64, prefill=32, mixed=16)
    assert [case.name for case in cases] == [
        "decode 1",
        "decode 4",
        "prefill 32",
        "16 new on 64 + 32 decodes",
    ]
    assert [sum(row.new for row in case.rows()) for case in cases] == [1, 4, 32, 48]
    assert cases[-1].prefills[0].context == 80


@pytest.mark.slow
def test_every_case_is_timed_in_every_round(tmp_path: pathlib.Path) -> None:
    ended: list[int] = []
    found = measure_kernels(
        str(shape_folder(MINI, tmp_path)),
        usual_cases([1, 2], context=16, prefill=8, mixed=4),
        engine={"executor": "torch", "threads": 1},
        rounds=2,
        on_ended=ended.append,
    )
    assert len(ended) == 3 * 4
    assert [floor.threads for floor in found.machine_floors] == [1]
    assert [case.tokens for case in found.cases] == [1, 2, 8, 36]
    for case in found.cases:
        assert case.call_ms.runs == case.step_ms.runs == 2
        assert 0 < case.least_ms <= case.call_ms.most
        assert case.call_ms.least <= case.step_ms.most
        assert case.floor_ms.runs == (0 if native_fault() else 2)
