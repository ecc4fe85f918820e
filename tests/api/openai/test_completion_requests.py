"""Bodies of chat completions: what is read, ignored and refused."""

import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.completion_requests import (
    PROMPTS_MAX,
    SHARED_FIELDS,
    read_chat_request,
    read_completions_request,
    read_shared,
)
from triolet.api.openai.tokenizer_request import read_detokenize_request, read_tokenize_request
from triolet.api.schema.fields import JsonObject
from triolet.api.schema.tables import Body
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.text.prompts import ChatPrompt

MESSAGES = [{"role": "user", "content": "hi"}]


def test_the_usual_fields() -> None:
    request = read_chat_request(
        {
            "model": "toy",
            "messages": MESSAGES,
            "max_tokens": 9,
            "temperature": 0.5,
            "stop": ["a", "b"],
            "seed": 1,
            "ignore_eos": True,
            "min_tokens": 2,
            "stream": True,
            "stream_options": {"include_usage": True},
            "runtime": {"token_ids": True},
        },
        model="toy",
    )
    assert request.prompt == ChatPrompt(MESSAGES)
    assert request.sampling == SamplingParams(
        max_tokens=9, temperature=0.5, stop=("a", "b"), seed=1, ignore_eos=True, min_tokens=2
    )
    assert request.options.stream
    assert request.options.include_usage
    assert request.options.with_token_ids


def test_the_newer_name_of_max_tokens_wins() -> None:
    values = {"messages": MESSAGES, "max_tokens": 9, "max_completion_tokens": 4}
    assert read_chat_request(values, model="toy").sampling.max_tokens == 4


def test_token_ids_replace_messages() -> None:
    request = read_chat_request({"runtime": {"input_token_ids": [5]}}, model="toy")
    assert request.prompt == [5]


@pytest.mark.parametrize(
    "values",
    [
        {"n": 1, "logprobs": False, "top_logprobs": 0, "tools": [], "tool_choice": "none"},
        {"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1.0},
        {"response_format": {"type": "text"}, "modalities": ["text"], "logit_bias": {}},
        {"user": "u", "store": False, "service_tier": "auto", "unheard_of": {}},
    ],
)
def test_what_asks_for_nothing_is_ignored(values: JsonObject) -> None:
    read_chat_request({"messages": MESSAGES, **values}, model="toy")


@pytest.mark.parametrize(
    ("values", "code", "param"),
    [
        ({"best_of": 2}, "unsupported_parameter", "best_of"),
        ({"use_beam_search": True}, "unsupported_parameter", "use_beam_search"),
        ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "invalid_value", "prompt_logprobs"),
        ({"chat_template": "x"}, "unsupported_parameter", "chat_template"),
        ({"messages": None}, "missing_required_parameter", "messages"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "user", "content": "x"}, 5]}, "invalid_type", "messages[1]"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
         "missing_required_parameter", "messages[0].tool_calls[0].name"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "unsupported_parameter", "messages[0].content[0].type"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"runtime": {"input_token_ids": [1]}}, "invalid_value", "runtime.input_token_ids"),
        ({"model": "gpt"}, "model_not_found", "model"),
    ],
)  # fmt: skip
def test_what_is_refused_names_the_field(values: JsonObject, code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_chat_request({"messages": MESSAGES, **values}, model="toy")
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        ("", [""]),
        ([1, 2], [[1, 2]]),
        (["a", "b"], ["a", "b"]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([[1], "b"], [[1], "b"]),
    ],
)
def test_forms_of_prompts(prompt: object, prompts: list[object]) -> None:
    request = read_completions_request({"prompt": prompt}, model="toy")
    assert request.prompts == prompts
    assert request.sampling == SamplingParams(max_tokens=16)
    assert request.generates


def test_the_usual_fields_of_completions_request() -> None:
    request = read_completions_request(
        {
            "model": "toy",
            "prompt": "a",
            "max_tokens": 3,
            "temperature": 0,
            "top_k": -1,
            "stop": "x",
            "stream": True,
            "stream_options": {"include_usage": True},
            "echo": True,
            "add_special_tokens": False,
            "priority": 4,
            "cache_salt": "s",
            "logprobs": None,
            "n": 1,
            "best_of": 1,
            "suffix": "",
            "user": "u",
        },
        model="toy",
    )
    assert request.sampling == SamplingParams(max_tokens=3, temperature=0, top_k=0, stop=("x",))
    assert (request.options.stream, request.options.include_usage) == (True, True)
    assert (request.echo, request.add_special_tokens) == (True, False)
    assert (request.options.runtime.priority, request.options.runtime.cache_salt) == (4, "s")


@pytest.mark.parametrize(
    ("values", "logprobs", "prompt_logprobs", "tells"),
    [
        ({"logprobs": 2}, 2, None, False),
        ({"logprobs": 2, "echo": True}, 2, 2, False),
        ({"logprobs": 2, "echo": True, "stream": True}, 2, 2, False),
        ({"logprobs": 2, "echo": True, "prompt_logprobs": 3}, 2, 3, True),
        ({"prompt_logprobs": 0}, None, 0, True),
        ({"echo": True}, None, None, False),
    ],
)
def test_whose_logprobs_are_told(
    values: JsonObject, logprobs: int | None, prompt_logprobs: int | None, tells: bool
) -> None:
    request = read_completions_request({"prompt": "a", **values}, model="m")
    sampling = request.sampling
    assert (sampling.logprobs, sampling.prompt_logprobs) == (logprobs, prompt_logprobs)
    assert request.tells_prompt_logprobs == tells


def test_a_prompt_is_scored_by_computing_it() -> None:
    values = {"prompt": "a", "echo": True, "max_tokens": 0, "logprobs": 1}
    request = read_completions_request(values, model="m")
    assert request.generates
    assert not request.keeps_output
    assert request.sampling.max_tokens == 1


def test_no_tokens_are_wanted_with_echo_alone() -> None:
    request = read_completions_request({"prompt": "a", "echo": True, "max_tokens": 0}, model="m")
    assert not request.generates


@pytest.mark.parametrize(
    ("values", "code", "param"),
    [
        ({"prompt": None}, "missing_required_parameter", "prompt"),
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": [[]]}, "invalid_value", "prompt[0]"),
        ({"prompt": [1, "a"]}, "invalid_type", "prompt[1]"),
        ({"prompt": [True]}, "invalid_type", "prompt[0]"),
        ({"prompt": ["a", 1]}, "invalid_type", "prompt[1]"),
        ({"prompt": [[1], [2, "a"]]}, "invalid_type", "prompt[1][1]"),
        ({"prompt": ["a"] * (PROMPTS_MAX + 1)}, "invalid_value", "prompt"),
        ({"prompt": ["a"] * (PROMPTS_MAX // 2), "n": 3}, "invalid_value", "n"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"suffix": "x"}, "unsupported_parameter", "suffix"),
        ({"prompt_embeds": "QUJD"}, "unsupported_parameter", "prompt_embeds"),
        ({"runtime": {"input_token_ids": [1]}}, "invalid_value", "runtime.input_token_ids"),
    ],
)
def test_what_is_refused_names_the_field_of_completions_request(
    values: JsonObject, code: str, param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        read_completions_request({"prompt": "a", **values}, model="toy")
    assert (caught.value.code, caught.value.param) == (code, param)


SHARED = Body(SHARED_FIELDS)


def test_our_own_object_wins_over_the_top_level() -> None:
    values = SHARED.read(
        {
            "seed": 1,
            "top_p": 0.5,
            "priority": 2,
            "cache_salt": "top",
            "runtime": {"seed": 5, "priority": 7, "token_ids": True},
        }
    )
    options, sampling = read_shared(values, max_tokens=9)
    assert (sampling.seed, sampling.top_p, sampling.max_tokens) == (5, 0.5, 9)
    assert (options.runtime.priority, options.runtime.cache_salt) == (7, "top")
    assert options.with_token_ids


def test_defaults() -> None:
    options, sampling = read_shared({}, max_tokens=None)
    assert sampling.max_tokens is None
    assert not any((options.stream, options.include_usage, options.with_token_ids))


def test_fields_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ApiError) as caught:
        read_shared(SHARED.read({"stream_options": {"include_usage": True}}), max_tokens=None)
    assert caught.value.param == "stream_options"
    with pytest.raises(ApiError) as caught:
        read_shared(SHARED.read({"min_tokens": 5}), max_tokens=4)
    assert caught.value.param == "min_tokens"


MESSAGES_OF_TOKENIZER_REQUEST = [{"role": "user", "content": "a"}]
TOOL: JsonObject = {"type": "function", "function": {"name": "f", "parameters": {}}}


def test_a_text_gets_special_tokens_and_a_conversation_has_them() -> None:
    text = read_tokenize_request({"prompt": "a", "return_token_strs": True}, model="toy")
    assert (text.prompt, text.add_special_tokens, text.return_token_strs) == ("a", True, True)
    chat = read_tokenize_request(
        {"messages": MESSAGES_OF_TOKENIZER_REQUEST, "add_generation_prompt": False}, model="toy"
    )
    assert (chat.prompt, chat.add_special_tokens) == (
        ChatPrompt(MESSAGES_OF_TOKENIZER_REQUEST, False),
        False,
    )
    shown = read_tokenize_request(
        {"messages": MESSAGES_OF_TOKENIZER_REQUEST, "tools": [TOOL]}, model="toy", has_tools=True
    )
    assert isinstance(shown.prompt, ChatPrompt)
    assert [tool["function"]["name"] for tool in shown.prompt.tools or ()] == ["f"]
    assert read_detokenize_request({"tokens": [1, 2]}, model="toy") == [1, 2]


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": MESSAGES_OF_TOKENIZER_REQUEST}, "prompt"),
        ({"messages": MESSAGES_OF_TOKENIZER_REQUEST, "tools": [{}]}, "tools[0].type"),
        ({"messages": MESSAGES_OF_TOKENIZER_REQUEST, "tools": [TOOL]}, "tools"),
    ],
)
def test_what_is_refused_names_the_field_of_tokenizer_request(
    values: JsonObject, param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        read_tokenize_request(values, model="toy")
    assert caught.value.param == param
