"""A line for people, a line for programs; both carry who, which request, and what went wrong."""

import json
import logging
import sys

import pytest

from triolet.nurseries.logs.lines import LineFormat, LogSettings, log_fields


def record(
    message: str, *arguments: object, level: int = logging.INFO, **extra: object
) -> logging.LogRecord:
    made = logging.getLogger("triolet.test").makeRecord(
        "triolet.test", level, "f.py", 1, message, arguments, None, extra=extra
    )
    made.created = 1_000_000_000.25
    return made


def test_a_line_for_people() -> None:
    form = LineFormat(LogSettings(), "frontend 0", 3)
    line = form.line(record("said %s", "hello", size_bytes=3))
    assert line.split(" ", 1)[1] == "frontend 0: said hello size_bytes=3\n"
    assert " WARNING late\n" in form.line(record("late", level=logging.WARNING))


def test_the_root_names_nobody() -> None:
    assert LineFormat(LogSettings()).line(record("up")).split(" ", 1)[1] == "up\n"


def test_a_line_for_programs() -> None:
    form = LineFormat(LogSettings(format="json"), "engine 1", 4)
    with log_fields(request_id="req_1"):
        line = form.line(record('said "%s"\n', "ä", size_bytes=3, message_="x"))
    assert line.count("\n") == 1
    assert json.loads(line) == {
        "time": "2001-09-09T01:46:40.250Z",
        "level": "info",
        "process": "engine 1",
        "epoch": 4,
        "logger": "triolet.test",
        "message": 'said "ä"\n',
        "request_id": "req_1",
        "size_bytes": 3,
        "message_": "x",
    }


def test_facts_are_for_programs_alone() -> None:
    made = record("engine 0: ready", facts={"child": "engine 0", "message": "never"})
    assert LineFormat(LogSettings()).line(made).endswith(" engine 0: ready\n")
    told = json.loads(LineFormat(LogSettings(format="json")).line(made))
    assert (told["child"], told["message"]) == ("engine 0", "engine 0: ready")


def test_fields_end_with_their_block_and_nest() -> None:
    form = LineFormat(LogSettings())
    with log_fields(one=1), log_fields(two=2):
        assert form.line(record("x")).endswith("x one=1 two=2\n")
    assert form.line(record("x")).endswith(" x\n")


@pytest.mark.parametrize("words", ["human", "json"])
def test_a_traceback_is_told_in_both(words: str) -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        made = record("failed", level=logging.ERROR)
        made.exc_info = sys.exc_info()
    line = LineFormat(LogSettings(format=words)).line(made)
    text = line if words == "human" else json.loads(line)["exception"]
    assert "Traceback" in text
    assert "ValueError: broken" in text


@pytest.mark.parametrize("words", [{"format": "xml"}, {"level": "loud"}])
def test_unknown_words_are_refused(words: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="must be in"):
        LogSettings(**words)
