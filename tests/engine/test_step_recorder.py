"""Spans go to a file that can be read while, and after, its process writes it."""

import pathlib

import pytest

from triolet.bench.steps.timeline import SpanRecord, read_records
from triolet.engine import step_recorder
from triolet.engine.step_recorder import NO_RECORDER, Span, open_recorder


def test_spans_can_be_read_while_the_recorder_is_open(tmp_path: pathlib.Path) -> None:
    with open_recorder(str(tmp_path), "engine") as recorder:
        recorder.note_span(Span.SCHEDULE, 7, 10, 20)
        recorder.note_span(Span.WAIT, 7, 20, 50)
        (first, second) = read_records(tmp_path)
    assert first.process.startswith("engine-")
    assert first == SpanRecord(first.process, Span.SCHEDULE, 7, 10, 20)
    assert second == SpanRecord(first.process, Span.WAIT, 7, 20, 50)
    assert read_records(tmp_path) == [first, second]


def test_a_span_ends_where_the_next_one_begins(tmp_path: pathlib.Path) -> None:
    with open_recorder(str(tmp_path), "worker") as recorder:
        began = recorder.now()
        ended = recorder.note(Span.READ, 1, began)
        recorder.note(Span.COMPUTE, 1, ended)
    first, second = read_records(tmp_path)
    assert began == first.begin_ns <= first.end_ns == second.begin_ns <= second.end_ns


def test_two_processes_are_told_apart(tmp_path: pathlib.Path) -> None:
    with (
        open_recorder(str(tmp_path), "engine") as engine,
        open_recorder(str(tmp_path), "worker") as worker,
    ):
        worker.note_span(Span.READ, 1, 1, 2)
        engine.note_span(Span.WAIT, 1, 1, 2)
    names = [record.process.partition("-")[0] for record in read_records(tmp_path)]
    assert names == ["engine", "worker"]


def test_a_full_recorder_records_no_more(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_recorder, "RECORDS_MAX", 2)
    with open_recorder(str(tmp_path), "engine") as recorder:
        for number in range(1, 5):
            recorder.note_span(Span.WAIT, number, 1, 2)
    assert [record.step for record in read_records(tmp_path)] == [1, 2]


def test_without_a_folder_nothing_is_recorded_or_timed() -> None:
    with open_recorder("", "engine") as recorder:
        assert recorder is NO_RECORDER
        assert recorder.note(Span.WAIT, 1, recorder.now()) == 0
        recorder.note_span(Span.WAIT, 1, 0, 1)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: pathlib.Path) -> None:
    with (
        pytest.raises(FileNotFoundError),
        open_recorder(str(tmp_path / "nowhere"), "engine"),
    ):
        pass
