"""Each answer satisfies its schema's numbers as they were written, or the schema is refused."""

import json
from collections import Counter
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.errors import InvalidParameter
from triolet.engine.grammar.numbers import NUMBER_MAX, exact_bounds, is_exact
from triolet.engine.grammar.text import check_grammar, lark_text
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.tests.engine.grammar.drawn import drawn

EDGES = [2**31, 2**32, 2**53, 2**62, 2**63, 2**64, *(10**digits for digits in range(15, 23))]
INTEGERS = [sign * edge + more for edge in EDGES for sign in (1, -1) for more in (-1, 0, 1)]
FLOATS = [0.1, 0.30000000000000004, 1.0, -0.0, 1e-7, 5e-324, 1e22, 1e300, 3.4028235e38,
          1.7976931348623157e308, 123456789012345.6, 0.5, 2.0**63, 1e16 + 2]  # fmt: skip
NUMBERS = [0, 1, -1, 175928847299117063, -(2**63) + 512, *INTEGERS, *FLOATS, *(-n for n in FLOATS)]
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def satisfies(schema: Any, text: str) -> bool:
    """By exact arithmetic."""
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    return bool(
        jsonschema.Draft202012Validator(exact).is_valid(json.loads(text, parse_float=Decimal))
    )


def check_answers(schema: Any) -> str:
    """What came of it."""
    try:
        texts = drawn(schema, range(3))
    except InvalidParameter as error:
        assert error.reason  # noqa: PT017
        return "refused"
    for text in texts:
        assert text is None or satisfies(schema, text), (schema, text)
    return "served" if any(texts) else "long"


@pytest.mark.parametrize("form", ["const", "enum", "nested", "property", "typed"])
def test_a_constant_comes_out_with_its_own_digits_or_is_refused(form: str) -> None:
    ends = Counter[str]()
    for number in NUMBERS:
        schema: Any = {
            "const": {"const": number},
            "enum": {"enum": [number, "other"]},
            "nested": {"const": {"a": [number]}},
            "property": {"properties": {"default": {"const": number}}, "required": ["default"]},
            "typed": {"type": ["number", "integer"][isinstance(number, int)], "const": number},
        }[form]
        end = check_answers(schema)
        assert (end == "refused") == (not is_exact(number)) or number in (5e-324, -5e-324)
        ends[end] += 1
    assert ends["served"] > 30


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("keyword", BOUNDS)
def test_a_bound_holds_as_it_was_written(kind: str, keyword: str) -> None:
    for number in NUMBERS:
        if kind == "number" and abs(number) > 1e38:
            continue  # says nothing, and may be exceeded by an exponent
        check_answers({"type": kind, keyword: number})


@given(
    st.sampled_from(["integer", "number"]),
    st.sampled_from(NUMBERS),
    st.integers(0, 4000),
    st.lists(st.sampled_from(BOUNDS), min_size=2, max_size=2, unique=True),
)
def test_two_bounds_hold_together(kind: str, low: float, width: int, names: list[str]) -> None:
    if abs(low) < 1e30:
        pair = sorted(names, key=lambda name: "Max" in name or "max" in name)
        check_answers({"type": kind, pair[0]: low, pair[1]: low + width})


@pytest.mark.parametrize("keyword", [*COUNTS, "multipleOf", "default", "examples"])
def test_other_keywords_with_any_number_are_served_or_refused(keyword: str) -> None:
    kind = {"Le": "string", "It": "array", "Pr": "object"}.get(keyword[3:5], "integer")
    for number in NUMBERS:
        check_answers({"type": kind, keyword: [number] if keyword == "examples" else number})


SAY_NOTHING: list[Any] = [
    {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
    {"type": "integer", "minimum": -(2**53) + 1, "maximum": 2**53 - 1},
    {"type": ["integer", "null"], "minimum": -(2**63)},
    {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
    {"type": "number", "minimum": -3.4028235e38, "maximum": 3.4028235e38},
    {"type": "number", "maximum": 3.4028234663852886e38},
    {"type": "string", "maxLength": 2**63 - 1},
    {"type": "integer", "default": -(2**63), "examples": [2**64]},
]


@pytest.mark.parametrize("schema", SAY_NOTHING, ids=str)
def test_limits_of_number_types_are_served(schema: Any) -> None:
    check_grammar(StructuredOutputs.json(schema))


@pytest.mark.parametrize("bound", [2**63 - 1, 2**64 - 1, 1e19, 2**53 + 1])
def test_a_moved_bound_is_inside_and_near(bound: int) -> None:
    schema: dict[str, Any] = {"type": "integer", "exclusiveMaximum": bound, "maximum": bound}
    exact_bounds(schema)
    assert schema.keys() == {"type", "maximum"}
    assert min(bound - 130_000, NUMBER_MAX - 130_000) <= schema["maximum"] < bound


@pytest.mark.parametrize("number", [-(2**63), -(2**63) + 512, 2**53 + 1, 2**63, 1e22])
@pytest.mark.parametrize("form", ["const", "minimum", "exclusiveMaximum", "default"])
def test_numbers_in_lark_are_checked_as_well(number: float, form: str) -> None:
    text = f"start: %json {json.dumps({'anyOf': [{form: number}]})}"
    with pytest.raises(InvalidParameter, match="does not hold exactly"):
        check_grammar(StructuredOutputs.grammar(text))


def test_a_grammar_of_a_schema_is_served_as_a_grammar_too() -> None:
    for schema in SAY_NOTHING:
        check_grammar(StructuredOutputs.grammar(lark_text(StructuredOutputs.json(schema))))
