"""Conversations of the Messages protocol as chat templates take them, or a refusal by its path."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.anthropic.turns import SIGNATURE, SYSTEM, TURNS, MessageTurns, signature_of
from triolet.api.errors import ApiError

CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "2"}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said, "cache_control": {"type": "ephemeral"}}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def answer(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def read(*messages: Any) -> MessageTurns:
    turns: MessageTurns = TURNS.read(list(messages), "messages")
    return turns


HI = {"role": "user", "content": "hi"}
CALLED = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}, "id": "toolu_1"}
ANSWERED = {"role": "tool", "content": "2", "tool_call_id": "toolu_1"}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALLED]}

READ: dict[str, tuple[list[Any], list[Any]]] = {
    "a string": ([HI], [HI]),
    "blocks are joined": ([user(text("a"), text("b"))], [{"role": "user", "content": "a\nb"}]),
    "turns of the user are joined": (
        [HI, user(text("ho"))],
        [{"role": "user", "content": "hi\nho"}],
    ),
    "a call and its result": (
        [HI, answer(CALL), user(RESULT, text("go on"))],
        [HI, CALLING, ANSWERED, {"role": "user", "content": "go on"}],
    ),
    "a result of blocks": (
        [HI, answer(CALL), user({**RESULT, "content": [text("2"), text("3")], "is_error": True})],
        [HI, CALLING, {**ANSWERED, "content": "2\n3"}],
    ),
    "a result of nothing": (
        [HI, answer(CALL), user({"type": "tool_result", "tool_use_id": "toolu_1"})],
        [HI, CALLING, {**ANSWERED, "content": ""}],
    ),
    "thinking": (
        [HI, answer({"type": "thinking", "thinking": "hm", "signature": "x"}, text("a")), HI],
        [
            HI,
            {"role": "assistant", "content": "a", "reasoning_content": "hm", "thinking": "hm"},
            HI,
        ],
    ),
    "thinking that was omitted": (
        [HI, answer({"type": "thinking", "thinking": "", "signature": signature_of("hm")}), HI],
        [HI, {"role": "assistant", "content": "", "reasoning_content": "hm", "thinking": "hm"}, HI],
    ),
    "thinking of others": (
        [
            HI,
            answer(
                {"type": "thinking", "thinking": "", "signature": "c2VjcmV0"},
                {"type": "thinking", "thinking": "", "signature": SIGNATURE},
                {"type": "redacted_thinking", "data": "x"},
                text("a"),
            ),
            HI,
        ],
        [HI, {"role": "assistant", "content": "a"}, HI],
    ),
    "a system's message after an answer": (
        [HI, answer(text("a")), HI, {"role": "system", "content": "it is late"}],
        [
            HI,
            {"role": "assistant", "content": "a"},
            {
                "role": "user",
                "content": "hi\n<system-reminder>\nit is late\n</system-reminder>",
            },
        ],
    ),
}


@pytest.mark.parametrize("name", READ)
def test_a_conversation_is_read_as_templates_take_it(name: str) -> None:
    given_messages, wanted = READ[name]
    assert read(*given_messages).messages == wanted


def test_a_systems_message_before_the_first_answer_is_of_the_system_prompt() -> None:
    effort = {"role": "system", "output_config": {"effort": "low"}}
    turns = read(HI, {"role": "system", "content": [text("a"), text("b")]}, effort)
    assert (turns.messages, turns.system) == ([HI], ["a", "b"])


def test_tools_are_made_known_and_withdrawn() -> None:
    reference = {"type": "tool_reference", "tool_name": "f"}
    change = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "g"}}
    turns = read(
        HI,
        answer(CALL),
        user({**RESULT, "content": [reference]}),
        {"role": "system", "content": [change]},
    )
    assert turns.offered == {"f": True, "g": False}
    assert "f can be called now" in turns.messages[-1]["content"]
    turns = read(HI, {"role": "system", "content": [{**change, "type": "tool_addition"}]})
    assert turns.offered == {"g": True}


def test_the_billing_block_of_claude_code_is_not_for_the_model() -> None:
    blocks = [text("x-anthropic-billing-header: cc_version=2;"), text("You help.")]
    assert SYSTEM.read(blocks, "system") == ["You help."]
    assert SYSTEM.read("You help.", "system") == ["You help."]


REFUSED: list[tuple[list[Any], str]] = [
    ([], "messages"),
    ([answer(text("hello"))], "messages"),
    ([HI, answer(text("begun"))], "messages"),
    ([{"role": "system", "content": "a"}], "messages"),
    ([{"role": "tool", "content": "a"}], "messages[0].role"),
    ([{"content": "a"}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([user()], "messages[0].content"),
    ([{"role": "user", "content": 7}], "messages[0].content"),
    ([user("a")], "messages[0].content[0]"),
    ([user({"text": "a"})], "messages[0].content[0].type"),
    ([user({"type": "text"})], "messages[0].content[0].text"),
    ([user({"type": "image", "source": {}})], "messages[0].content[0].type"),
    ([user({"type": "document", "source": {}})], "messages[0].content[0].type"),
    ([user(text("a"), CALL)], "messages[0].content[1].type"),
    ([user({"type": "tool_result"})], "messages[0].content[0].tool_use_id"),
    (
        [user({**RESULT, "content": [{"type": "image"}]})],
        "messages[0].content[0].content[0].type",
    ),
    ([HI, answer(RESULT), HI], "messages[1].content[0].type"),
    ([HI, answer({**CALL, "input": None}), HI], "messages[1].content[0].input"),
    ([HI, answer({**CALL, "input": "{}"}), HI], "messages[1].content[0].input"),
    ([HI, answer({**CALL, "id": None}), HI], "messages[1].content[0].id"),
    (
        [HI, answer({"type": "thinking", "thinking": "", "signature": "triolet.?"}), HI],
        "messages[1].content[0].signature",
    ),
    ([HI, {"role": "system", "content": [{"type": "image"}]}], "messages[1].content[0].type"),
    (
        [HI, {"role": "system", "content": [{"type": "tool_addition"}]}],
        "messages[1].content[0].tool",
    ),
    (
        [
            HI,
            {
                "role": "system",
                "content": [{"type": "tool_addition", "tool": {"type": "tool_definition"}}],
            },
        ],
        "messages[1].content[0].tool.type",
    ),
]


@pytest.mark.parametrize(("messages", "path"), REFUSED)
def test_what_is_not_served_is_refused_by_its_path(messages: list[Any], path: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(*messages)
    assert (caught.value.status, caught.value.param) == (400, path)


def test_arguments_that_are_nested_too_deep_are_shown_as_text() -> None:
    deep: dict[str, Any] = {}
    for _ in range(70):
        deep = {"a": deep}
    turns = read(HI, answer({**CALL, "input": deep, "name": ""}), HI)
    (call,) = turns.messages[1]["tool_calls"]
    assert call["function"] == {"name": "", "arguments": {"unparsed": json.dumps(deep)}}


SCALAR = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
KINDS = (
    "text",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "image",
    "tool_addition",
)
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional={
        "text": SCALAR,
        "thinking": SCALAR,
        "signature": SCALAR,
        "id": SCALAR,
        "name": SCALAR,
        "input": SCALAR | st.dictionaries(st.text(max_size=3), SCALAR),
        "tool_use_id": SCALAR,
        "content": SCALAR,
        "tool": SCALAR,
    },
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"])},
    optional={"content": SCALAR | st.lists(BLOCK | SCALAR, max_size=4)},
)


@given(st.lists(MESSAGE | SCALAR, max_size=5))
def test_whatever_is_sent_is_read_or_refused(messages: list[Any]) -> None:
    try:
        turns = read(*messages)
    except ApiError as error:
        refused = error.param
    else:
        refused = None
    if refused is not None:
        assert refused.startswith("messages")
        return
    roles = [each["role"] for each in turns.messages]
    assert roles[-1] in ("user", "tool")
    assert ("user", "user") not in pairwise(roles)
