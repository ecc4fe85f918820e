"""An assistant's turn: drawn, given to chat templates, and read back from what they render."""

import itertools
import json
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import attrs
from hypothesis import strategies as st

from triolet.runtime.text.answer_format import AnswerParser
from triolet.runtime.text.chat_template import ChatTemplate
from triolet.runtime.text.tool_calls import (
    AnswerEvent,
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    ReasoningPiece,
    TextPiece,
    Tool,
)

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "share": {"type": "number"},
        "is_hot": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "places": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object"},
    },
    "required": ["city"],
}
TOOLS = [Tool("get_weather", PARAMETERS), Tool("clock", {"type": "object", "properties": {}})]
ASKED = {"role": "user", "content": "Well?"}


@attrs.frozen
class Turn:
    """What an assistant has said."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        found: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.calls:
            found["tool_calls"] = [
                {
                    "id": f"call{place:05}",
                    "type": "function",
                    "function": {"name": n, "arguments": a},
                }
                for place, (n, a) in enumerate(self.calls)
            ]
        if self.reasoning:
            found |= {"reasoning_content": self.reasoning, "thinking": self.reasoning}
        return found


def read(parser: AnswerParser | None, pieces: Sequence[str]) -> Turn:
    assert parser is not None
    events: list[AnswerEvent] = []
    for piece in pieces:
        events += parser.push(piece)
    return turn_of(events + parser.finish())


def turn_of(events: Sequence[AnswerEvent]) -> Turn:
    reasoning, text, names, arguments = "", "", list[str](), list[str]()
    for event in events:
        match event:
            case ReasoningPiece(piece):
                reasoning += piece
            case TextPiece(piece):
                text += piece
            case CallBegun(index, name):
                assert index == len(names)
                names.append(name)
                arguments.append("")
            case ArgumentsPiece(index, piece):
                assert index == len(names) - 1
                arguments[-1] += piece
            case CallEnded(index):
                assert index == len(names) - 1
    calls = [(name, json.loads(each)) for name, each in zip(names, arguments, strict=True)]
    return Turn(reasoning, text, tuple(calls))


def cut(text: str, places: Sequence[int]) -> list[str]:
    at = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[begin:stop] for begin, stop in itertools.pairwise(at)]


def bytes_of(token_ids: Sequence[int]) -> list[bytes]:
    return [bytes([token_id]) for token_id in token_ids]


WORDS = st.text("abc é.\n", max_size=12).map(str.strip)
STRINGS = st.text(max_size=8).filter(lambda text: "</" not in text and "<|" not in text)
VALUES = {
    "city": STRINGS,
    "days": st.integers(-9, 10**9),
    "share": st.floats(allow_nan=False, allow_infinity=False),
    "is_hot": st.booleans() | st.none(),
    "places": st.lists(STRINGS, max_size=2),
    "more": st.dictionaries(STRINGS, st.none() | STRINGS | st.lists(st.integers()), max_size=2),
}
CALLS = st.lists(
    st.tuples(st.just("get_weather"), st.fixed_dictionaries({}, optional=VALUES))
    | st.just(("clock", dict[str, Any]())),
    max_size=3,
)
CUTS = st.lists(st.integers(0, 10**4), max_size=12)


def loaded(source: str) -> ChatTemplate:
    """The template of a folder that has this one."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "chat_template.jinja").write_text(source)
        return ChatTemplate.load(folder, {"bos_token": "<s>", "eos_token": "</s>"})
