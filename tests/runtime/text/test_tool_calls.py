"""What a model wrote becomes calls, however it is cut; what is forced is read back."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from triolet.engine.grammar.text import check_grammar, grammar_text
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.runtime.text.tool_calls import (
    CALLS_MAX,
    AnswerEvent,
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    TextPiece,
    Tool,
)
from triolet.runtime.text.tool_formats import HERMES_FORMAT, quoted

WEATHER = Tool("get_weather", {"type": "object", "properties": {"city": {"type": "string"}}})
CLOCK = Tool("clock", {"type": "object", "properties": {}}, "The time.")
OSLO = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def merged(events: list[AnswerEvent]) -> list[AnswerEvent]:
    """Neighbouring pieces of the same as one."""
    found: list[AnswerEvent] = []
    for event in events:
        match found[-1] if found else None, event:
            case TextPiece(before), TextPiece(text):
                found[-1] = TextPiece(before + text)
            case ArgumentsPiece(index, before), ArgumentsPiece(_, text):
                found[-1] = ArgumentsPiece(index, before + text)
            case _:
                found.append(event)
    return found


def parsed(*pieces: str) -> list[AnswerEvent]:
    parser = HERMES_FORMAT.parser([WEATHER, CLOCK])
    events = [event for piece in pieces for event in parser.push(piece)]
    return merged(events + parser.finish())


def call(index: int, name: str, arguments: str) -> list[AnswerEvent]:
    return [CallBegun(index, name), ArgumentsPiece(index, arguments), CallEnded(index)]


WRITTEN: list[tuple[str, list[AnswerEvent]]] = [
    ("", []),
    ("Hello.\n", [TextPiece("Hello.\n")]),
    (" \n", [TextPiece(" \n")]),
    ("a < b <tool", [TextPiece("a < b <tool")]),
    (OSLO, call(0, "get_weather", '{"city": "Oslo"}')),
    (f"So:\n\n{OSLO}\n", [TextPiece("So:"), *call(0, "get_weather", '{"city": "Oslo"}')]),
    (
        f"{OSLO}\n{OSLO} Done.",
        [
            *call(0, "get_weather", '{"city": "Oslo"}'),
            *call(1, "get_weather", '{"city": "Oslo"}'),
            TextPiece(" Done."),
        ],
    ),
    (
        '<tool_call>{"name":"f","arguments":{"a":"}\\"</tool_call>","b":[{}]}}</tool_call>',
        call(0, "f", '{"a":"}\\"</tool_call>","b":[{}]}'),
    ),
    (
        '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>',
        call(0, "f", '{"a": 1}'),
    ),
    ('<tool_call>{"name": "f"}</tool_call>', call(0, "f", "{}")),
    ("<tool_call>nonsense</tool_call>!", [TextPiece("<tool_call>nonsense</tool_call>!")]),
    (
        '<tool_call>{"name": "f", "arguments": 3}</tool_call>',
        [TextPiece('<tool_call>{"name": "f", "arguments": 3}</tool_call>')],
    ),
    # Cut before it is a call, or in its arguments.
    ('Hm. <tool_call>{"name": "f", "argu', [TextPiece("Hm.")]),
    ("<tool_call>", []),
    ("Hm.\n<tool_ca", [TextPiece("Hm.")]),
    ("<tool_call> opens a call", [TextPiece("<tool_call> opens a call")]),
    ('<tool_call>{"name": "f"}', call(0, "f", "{}")),
    (
        '<tool_call>{"name": "f", "arguments": {"a": [1',
        [CallBegun(0, "f"), ArgumentsPiece(0, '{"a": [1')],
    ),
]


ARGUMENTS: list[tuple[str, str]] = [
    ('{"city": "Paris"\n', '{"city": "Paris"\n}'),
    ('{"a": [{"b": 1', '{"a": [{"b": 1}]}'),
    ('{"a": "<b>\n\t\x00"\n}}', '{"a": "<b>\\n\\t\\u0000"\n}'),
    ('{"a": "\\\n\\\\"}}', '{"a": "\\n\\\\"}'),
]
WRITTEN += [
    (f'<tool_call>{{"name": "f", "arguments": {body}</tool_call>', call(0, "f", said))
    for body, said in ARGUMENTS
]
# What could not be told as JSON is none: half a character, numbers without end.
UNTELLABLE = [
    f"<tool_call>{body}</tool_call>"
    for body in (
        r'{"name": "\ud800", "arguments": {"a": 1}}',
        r'{"arguments": {"a": "\ud800"}, "name": "f"}',
        '{"arguments": {"a": 1e999, "b": NaN}, "name": "f"}',
    )
]
WRITTEN += [(text, [TextPiece(text)]) for text in UNTELLABLE]


@pytest.mark.parametrize(("text", "events"), WRITTEN, ids=lambda value: str(value)[:40])
def test_each_text_has_its_events_whole_and_by_the_character(
    text: str, events: list[AnswerEvent]
) -> None:
    assert parsed(text) == events
    assert parsed(*text) == events


@given(
    st.lists(
        st.one_of(
            st.sampled_from([OSLO, "<tool_call>", "</tool_call>", "\n", "<", '{"name": "f"}', '"']),
            st.text(max_size=6),
        ),
        max_size=8,
    ),
    st.lists(st.integers(0, 400), max_size=12),
)
def test_cuts_change_nothing(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[first:stop] for first, stop in itertools.pairwise(places)]
    assert parsed(*pieces) == parsed(text)


@given(
    st.dictionaries(
        st.text(), st.recursive(st.text() | st.none(), st.lists, max_leaves=12), max_size=3
    )
)
def test_any_arguments_are_read_back(arguments: dict[str, object]) -> None:
    text = json.dumps(arguments)
    written = f'<tool_call>\n{{"name": "f", "arguments": {text}}}\n</tool_call>'
    assert parsed(written) == call(0, "f", text)


@pytest.mark.parametrize("calls_max", [1, CALLS_MAX])
def test_what_forces_calls_can_be_served(calls_max: int) -> None:
    grammar = HERMES_FORMAT.forced([WEATHER, CLOCK], calls_max=calls_max, mark=quoted)
    check_grammar(StructuredOutputs.grammar(grammar))
    check_grammar(StructuredOutputs.grammar(HERMES_FORMAT.strict([WEATHER, CLOCK], mark=quoted)))


def matches(grammar: str, text: str) -> bool:
    matcher = LLMatcher(LLTokenizer("byte"), grammar_text(StructuredOutputs.grammar(grammar)))
    return bool(matcher.consume_tokens(list(text.encode()))) and bool(matcher.is_accepting())


GOOD_CALL = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "is_good"),
    [
        ("It is late.", True),
        (GOOD_CALL, True),
        (f"Let me see. {GOOD_CALL} So.", True),
        (f"{GOOD_CALL}\n{GOOD_CALL}", True),
        (f"<tool_call>{GOOD_CALL}", False),
        ("<tool_call>x", False),
        (GOOD_CALL.replace("clock", "compass"), False),
        (GOOD_CALL.replace("{}", "[]"), False),
    ],
)
def test_what_opens_a_strict_call_goes_on_as_one(text: str, is_good: bool) -> None:
    assert matches(HERMES_FORMAT.strict([CLOCK], mark=quoted), text) == is_good


@pytest.mark.parametrize(("text", "is_good"), [(GOOD_CALL, True), (f"Well. {GOOD_CALL}", False)])
def test_a_forced_call_is_all_there_is(text: str, is_good: bool) -> None:
    assert matches(HERMES_FORMAT.forced([CLOCK], calls_max=1, mark=quoted), text) == is_good
