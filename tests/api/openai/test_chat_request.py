"""Bodies of chat completions: what is read, ignored and refused."""

import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.completion_requests import read_chat_request
from triolet.api.schema.fields import JsonObject
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
