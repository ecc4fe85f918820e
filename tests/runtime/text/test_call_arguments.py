"""Arguments that a model wrote are taken back, whatever they are."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.runtime.text.call_arguments import (
    ANSWER_NESTING_MAX,
    UNPARSED,
    read_arguments,
    repaired,
    shown_arguments,
    written_arguments,
)
from triolet.runtime.text.json_text import check_nesting


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


READ: list[tuple[str, dict[str, Any] | None]] = [
    ("", {}),
    ("null", {}),
    ("{}", {}),
    ('{"a": [1, "é"]}', {"a": [1, "é"]}),
    ('{"a": 18446744073709551615}', {"a": 18446744073709551615}),
    ('{"code": "a\n\tb\x00"}', {"code": "a\n\tb\x00"}),
    ('{"a": NaN, "b": -Infinity}', {"a": "NaN", "b": "-Infinity"}),
    ('{"a": NaN, "b": 1e999, "c": 1.5, "d": 3}', {"a": "NaN", "b": "1e999", "c": 1.5, "d": 3}),
    (r'{"a": "\ud800", "\udc00": 1}', {"a": "\ufffd", "\ufffd": 1}),
    (r'{"a": "\ud83d\ude00 \ud83d"}', {"a": "\U0001f600 \ufffd"}),
    ('{"pa', None),
    ('{"city": "Paris"\n</tool_call>', None),
    ("[1]", None),
    ("3", None),
    (nested(70), None),
    (nested(100_000), None),
    ('{"a": NaN, "b": ' + nested(70) + "}", None),
    ('{"a": ' + "9" * 5000 + ', "b": "\n"}', {"a": "9" * 5000, "b": "\n"}),
]


@pytest.mark.parametrize(("text", "meant"), READ, ids=lambda value: str(value)[:30])
def test_each_text_is_an_object(text: str, meant: dict[str, Any] | None) -> None:
    assert repaired(text) == meant
    found = read_arguments(text)
    assert found == ({UNPARSED: text} if meant is None else meant)
    # Written again, it means the same; what had no reading comes back to the letter.
    again = written_arguments(found)
    assert read_arguments(again) == found
    assert meant is not None or again == text


@given(st.text(alphabet='{}[]":,\\ud8dc0019eENa \n\t\x00') | st.text())
def test_any_text_can_be_kept_and_written(text: str) -> None:
    found = read_arguments(text)
    check_nesting(found)
    assert msgspec.json.decode(msgspec.json.encode(found)) == found
    assert read_arguments(written_arguments(found)) == found


def test_an_answer_may_be_nested_deeper_than_a_template_is_shown() -> None:
    deep = repaired(nested(70), ANSWER_NESTING_MAX)
    assert deep is not None
    assert deep == json.loads(nested(70))
    assert repaired(nested(300), ANSWER_NESTING_MAX) is None
    shown = shown_arguments(deep)
    assert read_arguments(written_arguments(shown)) == shown
    assert json.loads(shown[UNPARSED]) == deep
    assert shown_arguments({"a": [1]}) == {"a": [1]}


def test_a_client_may_call_a_key_as_we_do() -> None:
    """Only a text without a reading is written as it was."""
    for text in ('{"unparsed": "{}"}', '{"unparsed": 3}', '{"unparsed": "{", "a": 1}'):
        assert written_arguments(read_arguments(text)) == text
