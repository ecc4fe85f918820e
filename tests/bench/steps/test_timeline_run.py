"""Real processes note their steps, and the steady ones are taken."""

import pytest

from triolet.bench.options import TimelineOptions
from triolet.bench.steps.timeline import ENGINE_WORK
from triolet.bench.steps.timeline_run import record_timeline, some_steps


@pytest.mark.slow
async def test_steps_of_real_processes() -> None:
    options = TimelineOptions(running=3, prompt_tokens=4, tokens=40, steps=2)
    timeline = await record_timeline(None, options, engine={"executor": "null", "max_num_seqs": 1})
    figures = timeline.figures
    assert {span.name.lower() for span in ENGINE_WORK} <= set(figures.spans_us)
    assert {"read", "unpack", "compute", "answer"} <= set(figures.spans_us)
    assert 5 < figures.steps < 40
    assert 0 <= figures.engine_hidden_share <= 1
    shown = some_steps(timeline, 2)
    assert timeline.first <= shown.first < shown.last == shown.first + 1 <= timeline.last
