"""Bodies of tokenize and detokenize."""

import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.tokenizer_request import read_detokenize_request, read_tokenize_request
from triolet.api.schema.fields import JsonObject
from triolet.runtime.text.prompts import ChatPrompt

MESSAGES = [{"role": "user", "content": "a"}]
TOOL: JsonObject = {"type": "function", "function": {"name": "f", "parameters": {}}}


def test_a_text_gets_special_tokens_and_a_conversation_has_them() -> None:
    text = read_tokenize_request({"prompt": "a", "return_token_strs": True}, model="toy")
    assert (text.prompt, text.add_special_tokens, text.return_token_strs) == ("a", True, True)
    chat = read_tokenize_request(
        {"messages": MESSAGES, "add_generation_prompt": False}, model="toy"
    )
    assert (chat.prompt, chat.add_special_tokens) == (ChatPrompt(MESSAGES, False), False)
    shown = read_tokenize_request(
        {"messages": MESSAGES, "tools": [TOOL]}, model="toy", has_tools=True
    )
    assert isinstance(shown.prompt, ChatPrompt)
    assert [tool["function"]["name"] for tool in shown.prompt.tools or ()] == ["f"]
    assert read_detokenize_request({"tokens": [1, 2]}, model="toy") == [1, 2]


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": MESSAGES}, "prompt"),
        ({"messages": MESSAGES, "tools": [{}]}, "tools[0].type"),
        ({"messages": MESSAGES, "tools": [TOOL]}, "tools"),
    ],
)
def test_what_is_refused_names_the_field(values: JsonObject, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_tokenize_request(values, model="toy")
    assert caught.value.param == param
