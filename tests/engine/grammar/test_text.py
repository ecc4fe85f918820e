"""Each kind becomes a grammar; what llguidance does not serve is refused in its words."""

import json

import pytest

from triolet.engine.errors import InvalidParameter
from triolet.engine.grammar.text import REASON_CHARACTERS_MAX, check_grammar, lark_text
from triolet.engine.structured_outputs import GrammarKind, StructuredOutputs

SERVED = [
    StructuredOutputs.json({"type": "object", "properties": {"a": {"type": "integer"}}}),
    StructuredOutputs.json(True),
    StructuredOutputs.json_object(),
    StructuredOutputs.regex(r"\d{3}-[a-z]+"),
    StructuredOutputs.choice(["a", 'quoted "b"', "\u00e9\U0001f600", "line\nbreak", ""]),
    StructuredOutputs.grammar('start: "a" | B\nB: /[0-9]+/'),
    StructuredOutputs.grammar('root ::= "a" | [0-9]+'),
    StructuredOutputs.grammar('\n\n  start : "a"'),
]
REFUSED = [
    (StructuredOutputs.json({"not": {}}), "Unimplemented keys.*not"),
    (StructuredOutputs.json({"type": "strin"}), "Invalid type"),
    (StructuredOutputs.json({"type": "string", "format": "color"}), "Unknown format"),
    (StructuredOutputs.json({"$ref": "http://example.com/a"}), "not present"),
    (StructuredOutputs.json(False), "nsatisfiable|enum"),
    (StructuredOutputs.json("{"), "not valid JSON"),
    (StructuredOutputs.regex("(?=a)"), "look-around"),
    (StructuredOutputs.regex("(" * 5000 + ")" * 5000), "regex"),
    (StructuredOutputs.regex("["), "regex"),
    (StructuredOutputs.grammar("start: missing"), "missing"),
    (StructuredOutputs.grammar("root ::= " + "(" * 5000), "served"),
    (StructuredOutputs.grammar("nonsense"), "served"),
    (StructuredOutputs.grammar("root ::= a"), "not found"),
    (StructuredOutputs.grammar("\n".join(f"a{i} ::= a{i + 1}" for i in range(600))), "512 rules"),
    (StructuredOutputs.regex("(?i)" + r"\pL" * 100), "ignores the case"),
    (StructuredOutputs(GrammarKind.CHOICE, "{}"), "array of strings"),
    (StructuredOutputs(GrammarKind.CHOICE, "[1]"), "array of strings"),
    (StructuredOutputs(GrammarKind.CHOICE, "["), "choices"),
]


@pytest.mark.parametrize("wanted", SERVED, ids=lambda wanted: wanted.kind)
def test_served(wanted: StructuredOutputs) -> None:
    check_grammar(wanted)


def test_times_are_bounded_and_data_is_not_touched() -> None:
    timed = {"type": "string", "format": "time"}
    schema = {"properties": {"a": timed, "b": {"const": timed}, "format": timed}}
    lark = lark_text(StructuredOutputs.json(schema))
    assert lark.count('"maxLength": 35') == 2
    assert json.dumps({"const": timed}) in lark


@pytest.mark.parametrize(("wanted", "reason"), REFUSED, ids=lambda value: str(value)[-40:])
def test_refused_with_the_reason(wanted: StructuredOutputs, reason: str) -> None:
    with pytest.raises(InvalidParameter, match=reason) as caught:
        check_grammar(wanted)
    assert caught.value.parameter == "structured_outputs"
    assert len(caught.value.reason) <= REASON_CHARACTERS_MAX + 30
