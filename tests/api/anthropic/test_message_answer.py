"""Answers of the Messages protocol: whole, and as events in order however the text is cut."""

import base64
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.anthropic.message_answer import MessageAnswer
from triolet.api.anthropic.messages_request import MessagesRequest
from triolet.api.completions.cursor import CompletionCursor
from triolet.api.completions.record import ChoiceRecord, CompletionRecord
from triolet.api.errors import ApiError, internal_error
from triolet.api.openai.chat import AnsweredPrompt
from triolet.api.openai.completion_requests import CompletionOptions
from triolet.engine.messages import FinishReason
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.text.answer_format import TEXT_ALONE, AnswerFormat
from triolet.runtime.text.outputs import GenerationOutput, Usage
from triolet.runtime.text.tool_calls import ToolChoice

from ..answers import CALLS, THINKING, THINKING_CALLS, TOOLS
from .events import events_of, message_of

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": [1, "é"]}}\n</tool_call>'
THOUGHT = "<think>\nHm, hm.\n</think>\n\n"
USED = Usage(3, 9, 2)
TEXT_BLOCK = {"type": "text", "text": "Yes."}
THINKING_BLOCK = {"type": "thinking", "thinking": "Hm, hm.", "signature": "triolet."}


def used(place: int) -> dict[str, Any]:
    call_id = f"toolu_{place}_00ab"
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {"a": [1, "é"]}}


def answer_of(
    format_: AnswerFormat, *, shows: bool = True, omits: bool = False, is_open: bool = False
) -> MessageAnswer:
    tools = TOOLS if format_.tools else attrs.evolve(TOOLS, tools=())
    request = MessagesRequest(
        prompt=[1],
        sampling=SamplingParams(max_tokens=9, stop=["END"]),
        options=CompletionOptions(),
        tools=attrs.evolve(tools, answer_format=format_),
        with_reasoning=shows,
        omits_thinking=omits,
    )
    return MessageAnswer("msg_00ab", "toy", request, is_open=is_open)


def recorded(
    text: str, size: int, reason: FinishReason = FinishReason.STOP, stop: str | None = None
) -> CompletionRecord:
    """Its text cut into so many tokens, and an end."""
    choice = ChoiceRecord(0, AnsweredPrompt([7, 8, 9]))
    pieces = [text[begin : begin + size] for begin in range(0, len(text), size)] or [""]
    for count, piece in enumerate(pieces, 1):
        is_last = count == len(pieces)
        end = {"finish_reason": reason, "stop_reason": stop} if is_last else {}
        choice.append(GenerationOutput(piece, [0], count, **end))  # type: ignore[arg-type]
    record = CompletionRecord([choice])
    record.end(USED)
    return record


def streamed(answer: MessageAnswer, record: CompletionRecord, tokens: int | None) -> bytes:
    cursor, data = CompletionCursor(record, answer, includes_usage=True), b""
    while not cursor.is_done:
        data += cursor.take(tokens)
    return data


def whole(answer: MessageAnswer, record: CompletionRecord) -> dict[str, Any]:
    """As a client reads it."""
    message = answer.whole([each.whole() for each in record.choices], USED)
    read: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(message))
    return read


CASES: dict[str, tuple[MessageAnswer, str, list[Any], str]] = {
    "text alone": (answer_of(TEXT_ALONE), "Yes.", [TEXT_BLOCK], "end_turn"),
    "no text": (answer_of(TEXT_ALONE), "", [{"type": "text", "text": ""}], "end_turn"),
    "text where calls may come": (answer_of(CALLS), "Yes.", [TEXT_BLOCK], "end_turn"),
    "nothing where calls may come": (answer_of(CALLS), "", [], "end_turn"),
    "a call": (answer_of(CALLS), CALL, [used(0)], "tool_use"),
    "text and calls": (
        answer_of(CALLS),
        f"Yes.\n{CALL}\n{CALL}",
        [TEXT_BLOCK, used(0), used(1)],
        "tool_use",
    ),
    "thinking": (answer_of(THINKING), f"{THOUGHT}Yes.", [THINKING_BLOCK, TEXT_BLOCK], "end_turn"),
    "thinking and a call": (
        answer_of(THINKING_CALLS),
        THOUGHT + CALL,
        [THINKING_BLOCK, used(0)],
        "tool_use",
    ),
    "thinking that the prompt has opened": (
        answer_of(THINKING, is_open=True),
        "Hm, hm.</think>Yes.",
        [THINKING_BLOCK, TEXT_BLOCK],
        "end_turn",
    ),
    "thinking that was not asked for": (
        answer_of(THINKING, shows=False),
        f"{THOUGHT}Yes.",
        [TEXT_BLOCK],
        "end_turn",
    ),
    "thinking that is omitted": (
        answer_of(THINKING, omits=True),
        f"{THOUGHT}Yes.",
        [
            {
                "type": "thinking",
                "thinking": "",
                "signature": "triolet." + base64.b64encode(b"Hm, hm.").decode(),
            },
            TEXT_BLOCK,
        ],
        "end_turn",
    ),
}


@pytest.mark.parametrize("tokens", [None, 1, 3])
@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("name", CASES)
def test_events_add_up_to_the_whole_message(name: str, size: int, tokens: int | None) -> None:
    answer, text, content, stop_reason = CASES[name]
    record = recorded(text, size)
    message = whole(answer, record)
    assert message == {
        "id": "msg_00ab",
        "type": "message",
        "role": "assistant",
        "model": "toy",
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 1,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 2,
            "output_tokens": 9,
        },
    }
    assert message_of(events_of(streamed(answer, record, tokens))) == message


def framed(
    answer: MessageAnswer, record: CompletionRecord, behind: str | None = None
) -> list[bytes]:
    """Each with its id."""
    cursor = CompletionCursor(record, answer, includes_usage=True)
    if behind is not None:
        cursor.go_behind(behind)
    data = cursor.take()
    assert cursor.is_done or behind == "done"
    return data.split(b"\n\n")[:-1]


def id_of(frame: bytes) -> str:
    return frame.split(b"\n")[0].removeprefix(b"id: ").decode()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_behind_the_id_of_any_event_come_the_later_ones(name: str, size: int) -> None:
    answer, text, _, _ = CASES[name]
    record = recorded(text, size)
    frames = framed(answer, record)
    ids = [id_of(frame) for frame in frames]
    assert len(set(ids)) == len(ids)
    assert ids[-2:] == ["usage", "done"]
    for place, position in enumerate(ids):
        assert framed(answer, record, position) == frames[place + 1 :]


@pytest.mark.parametrize("tokens", [1, 3, 7])
def test_ids_are_the_same_however_many_tokens_came_together(tokens: int) -> None:
    answer, record = answer_of(THINKING_CALLS), recorded(f"{THOUGHT}Yes.\n{CALL}", 4)
    frames = framed(answer, record)
    merged = streamed(answer, record, tokens)
    assert merged.split(b"\n\n")[:-1] == frames


@pytest.mark.parametrize("position", ["4r", "4r+1", "0+", "0+0", "+1", "usage+1", "0+1000"])
def test_what_is_the_id_of_no_event_is_refused(position: str) -> None:
    with pytest.raises(ApiError, match="not the id of an event"):
        framed(answer_of(CALLS), recorded("Yes.", 1), position)


@pytest.mark.parametrize("position", ["2+1", "2e", "3", "usage"])
def test_an_event_that_has_not_come_is_beyond(position: str) -> None:
    choice = ChoiceRecord(0, AnsweredPrompt([7]))
    choice.append(GenerationOutput("ab", [0, 1], 2, texts=["a", "b"]))
    cursor = CompletionCursor(CompletionRecord([choice]), answer_of(CALLS), includes_usage=True)
    assert cursor.is_beyond(position)
    assert not cursor.is_beyond("1+1")
    with pytest.raises(ApiError, match="beyond the last"):
        cursor.go_behind(position)


ENDS: list[tuple[FinishReason, str | None, int, str]] = [
    (FinishReason.STOP, None, 9, "end_turn"),
    (FinishReason.STOP, "END", 9, "stop_sequence"),
    (FinishReason.LENGTH, None, 9, "max_tokens"),
    (FinishReason.LENGTH, None, 5, "model_context_window_exceeded"),
    (FinishReason.DEADLINE, None, 5, "max_tokens"),
]


@pytest.mark.parametrize(("reason", "stop", "tokens", "word"), ENDS)
def test_reasons_of_the_end(reason: FinishReason, stop: str | None, tokens: int, word: str) -> None:
    record = recorded("a" * tokens, 1, reason, stop)
    message = whole(answer_of(TEXT_ALONE), record)
    assert (message["stop_reason"], message["stop_sequence"]) == (word, stop)


def test_a_call_that_was_cut_has_no_arguments() -> None:
    record = recorded(CALL[:45], 9, FinishReason.LENGTH)
    message = whole(answer_of(CALLS), record)
    assert message["content"][0]["input"] == {}
    assert message["stop_reason"] == "model_context_window_exceeded"


def test_a_forced_call_ends_the_turn_for_its_result() -> None:
    answer = answer_of(CALLS)
    use = answer.request.tools
    choice = attrs.evolve(use.choice, choice=ToolChoice.REQUIRED, name="f")
    request = attrs.evolve(answer.request, tools=attrs.evolve(use, choice=choice))
    message = whole(attrs.evolve(answer, request=request), recorded(CALL, 1000))
    assert message["stop_reason"] == "tool_use"


def test_reasoning_tokens_are_thinking_tokens() -> None:
    record = recorded("Yes.", 1)
    choices = [each.whole() for each in record.choices]
    usage: Any = answer_of(THINKING).whole(choices, Usage(3, 9, 0, 4))["usage"]
    assert usage["output_tokens_details"] == {"thinking_tokens": 4}


def test_a_failure_is_an_error_event() -> None:
    record = CompletionRecord([ChoiceRecord(0, AnsweredPrompt([7]))])
    record.end(internal_error())
    *_, last = events_of(streamed(answer_of(TEXT_ALONE), record, None))
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    assert last["error"]["code"] == "internal_error"


PIECES = st.sampled_from(
    ["a", " ", "\n", "<think>", "</think>", CALL, "<tool_call>", "</tool_call>", '{"', "}", "é"]
)


@given(st.lists(PIECES, max_size=12).map("".join), st.integers(1, 9), st.booleans())
def test_whatever_a_model_writes_the_events_are_in_order(text: str, size: int, omits: bool) -> None:
    answer, record = answer_of(THINKING_CALLS, omits=omits), recorded(text, size)
    assert message_of(events_of(streamed(answer, record, 1))) == whole(answer, record)
