"""Every way to ask for a form, and the bounds on it."""

import json

import pytest

from triolet.engine.errors import InvalidParameter
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.structured_outputs import (
    CHOICES_MAX,
    GRAMMAR_CHARACTERS_MAX,
    GrammarKind,
    StructuredOutputs,
)


def test_each_kind_keeps_its_text() -> None:
    schema = {"type": "integer"}
    assert StructuredOutputs.json(schema).text == json.dumps(schema)
    assert StructuredOutputs.json('{"type":"integer"}').text == '{"type":"integer"}'
    assert StructuredOutputs.json(True).text == "true"
    assert StructuredOutputs.json_object() == StructuredOutputs(GrammarKind.JSON_OBJECT)
    assert StructuredOutputs.regex("a+").text == "a+"
    assert StructuredOutputs.choice(["a", "b"]).text == '["a", "b"]'
    assert StructuredOutputs.grammar("start: /a/").kind is GrammarKind.GRAMMAR
    assert SamplingParams().structured_outputs is None


def test_bounds() -> None:
    StructuredOutputs.regex("a" * GRAMMAR_CHARACTERS_MAX)
    with pytest.raises(InvalidParameter, match="structured_outputs must have at most"):
        StructuredOutputs.regex("a" * (GRAMMAR_CHARACTERS_MAX + 1))
    StructuredOutputs.choice(str(i) for i in range(CHOICES_MAX))
    for choices in ([], [str(i) for i in range(CHOICES_MAX + 1)]):
        with pytest.raises(InvalidParameter, match="choices"):
            StructuredOutputs.choice(choices)


@pytest.mark.parametrize("kind", list(GrammarKind))
def test_what_no_message_can_carry_is_no_text(kind: GrammarKind) -> None:
    with pytest.raises(InvalidParameter, match="structured_outputs must be text: its character 1"):
        StructuredOutputs(kind, "a\ud800")
