"""Times that grammars allow are times that clients' parsers read."""

import datetime
import re
from typing import Any

import jsonschema
import pydantic
import pytest

from triolet.engine.grammar.times import TIMES
from triolet.tests.engine.grammar.drawn import drawn

CHECKED = jsonschema.Draft202012Validator
READERS: dict[str, list[Any]] = {
    "date": [datetime.date.fromisoformat, pydantic.TypeAdapter(datetime.date).validate_python],
    "time": [datetime.time.fromisoformat, pydantic.TypeAdapter(datetime.time).validate_python],
    "date-time": [
        datetime.datetime.fromisoformat,
        pydantic.TypeAdapter(datetime.datetime).validate_python,
    ],
    "duration": [pydantic.TypeAdapter(datetime.timedelta).validate_python],
}


@pytest.mark.parametrize("form", TIMES)
def test_whatever_is_drawn_is_read(form: str) -> None:
    schema = {"type": "string", "format": form}
    for text in drawn(schema, range(60)):
        assert text is not None
        for read in READERS[form]:
            read(text.strip('"'))
        assert CHECKED(schema, format_checker=CHECKED.FORMAT_CHECKER).is_valid(text.strip('"'))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("date", "2024-02-29"), ("date", "2000-02-29"), ("date", "0001-01-01"),
        ("date", "9999-12-31"), ("time", "23:59:59.123456Z"), ("time", "00:00:00-00:30"),
        ("date-time", "2026-11-28T06:40:00+01:00"), ("duration", "P1Y2M3DT4H5M6S"),
        ("duration", "PT36H"), ("duration", "P2W"),
    ],
)  # fmt: skip
def test_usual_times(form: str, text: str) -> None:
    assert re.search(TIMES[form], text)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("date", "2023-02-29"), ("date", "1900-02-29"), ("date", "0000-01-01"),
        ("date", "2026-04-31"), ("date", "2026-13-01"), ("time", "12:00:60Z"),
        ("time", "12:00:00"), ("time", "24:00:00Z"), ("time", "12:00:00.1234567Z"),
        ("time", "12:00:00+24:00"), ("date-time", "2026-11-28 06:40:00Z"), ("duration", "P"),
        ("duration", "PT"), ("duration", "P1Y1D"), ("duration", "P12345D"),
    ],
)  # fmt: skip
def test_no_time(form: str, text: str) -> None:
    assert not re.search(TIMES[form], text)


def test_a_pattern_beside_a_format_holds_too() -> None:
    schema = {"type": "string", "format": "date", "pattern": "^2024"}
    (text,) = drawn(schema, [1])
    assert text is not None
    assert text.startswith('"2024-')
