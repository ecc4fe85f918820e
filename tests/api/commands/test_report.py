"""What the person at the terminal reads."""

import io
import json
import logging
import sys

import pytest
from rich.console import Console

from triolet.api.commands.report import (
    BarReport,
    FirstSteps,
    ServerLog,
    is_watched,
    log_event,
)
from triolet.nurseries.logs import HUMAN, JSON
from triolet.runtime import events

from ...runtime.test_event_lines import EVENTS


def test_what_to_do_next_is_said_behind_serving() -> None:
    page, curl, sdk = FirstSteps("org/m").lines("http://h:1")
    assert page.endswith("http://h:1/")
    assert json.loads(curl.partition(" -d ")[2].strip("'")) == {"model": "org/m", "input": "Hello"}
    assert 'OpenAI(base_url="http://h:1/v1", api_key="none")' in sdk
    assert "authorization: Bearer KEY" in FirstSteps("m", needs_key=True).lines("http://h:1")[1]
    console = Console(file=io.StringIO(), width=40)
    BarReport(console, FirstSteps("m"))(events.Serving("http://h:1", 2.0))
    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert shown[-3:] == FirstSteps("m").lines("http://h:1")


@pytest.mark.parametrize("is_for_people", [True, False])
def test_no_log_has_the_key_of_a_demo(
    is_for_people: bool, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    steps = FirstSteps("m", demo_key="secret")
    ServerLog(steps, is_for_people=is_for_people)(events.Serving("http://h:1", 2.0))
    assert capsys.readouterr().out == "page that may kill: http://h:1/#key=secret\n"
    assert "secret" not in caplog.text
    assert ("curl" in caplog.text) is is_for_people
    assert "http://h:1/#key=secret " in steps.lines("http://h:1", is_terminal=True)[0]


@pytest.mark.parametrize(
    ("log_format", "is_terminal"), [(HUMAN, True), (JSON, True), (HUMAN, False)]
)
def test_who_watches_is_at_a_terminal_that_no_program_reads(
    log_format: str, is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    assert is_watched(log_format) is (is_terminal and log_format == HUMAN)


def test_log_lines_carry_the_event_as_data(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for event, _ in EVENTS:
        log_event(event)
    assert len(caplog.records) == sum(bool(words) for _, words in EVENTS)
    gone = next(record for record in caplog.records if "SIGKILL" in record.message)
    failed = next(record for record in caplog.records if record.levelno == logging.ERROR)
    assert gone.levelno == logging.WARNING
    assert gone.__dict__["facts"] == {
        "event": "child_gone",
        "child": "engine 0",
        "child_epoch": 3,
        "cause": "was killed by SIGKILL",
    }
    assert failed.__dict__["facts"]["event"] == "child_failed"


def test_bars_end_in_the_same_sentences() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with BarReport(console) as report:
        for event, _ in EVENTS:
            report(event)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "engine 0: start" in text  # a bar, from the spawn on
    assert "engine 0: load weights" in text
    assert "in 0.4 s" not in text
    assert "ready after 1.2 s" in text
    assert "given up" in text
