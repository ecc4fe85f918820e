"""Bodies of chat completions: what is read, ignored and refused."""

import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.chat_request import read_chat_request
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


def test_every_other_parameter_is_taken() -> None:
    values: JsonObject = {
        "n": 3,
        "best_of": 3,
        "logprobs": True,
        "top_logprobs": 4,
        "prompt_logprobs": 1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
        "logit_bias": {"5": 1, "70": -2.5},
        "allowed_token_ids": [1, 2],
        "bad_words": "fox",
        "truncate_prompt_tokens": -1,
        "runtime": {"deadline_ms": 1500},
    }
    request = read_chat_request({"messages": MESSAGES, **values}, model="toy")
    assert request.sampling == SamplingParams(
        n=3,
        logprobs=4,
        prompt_logprobs=1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.5,
        logit_bias={5: 1, 70: -2.5},
        allowed_token_ids=[1, 2],
        bad_words=["fox"],
        truncate_prompt_tokens=-1,
    )
    assert request.options.runtime.deadline_s == 1.5


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
        ({"n": 129}, "invalid_parameter", "n"),
        ({"n": True}, "invalid_type", "n"),
        ({"best_of": 2}, "unsupported_parameter", "best_of"),
        ({"use_beam_search": True}, "unsupported_parameter", "use_beam_search"),
        ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "invalid_parameter", "top_logprobs"),
        ({"prompt_logprobs": -1}, "invalid_parameter", "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "invalid_value", "prompt_logprobs"),
        ({"bad_words": [""]}, "invalid_value", "bad_words[0]"),
        ({"allowed_token_ids": []}, "invalid_value", "allowed_token_ids"),
        ({"truncate_prompt_tokens": 0}, "invalid_parameter", "truncate_prompt_tokens"),
        ({"tools": [{}]}, "unsupported_parameter", "tools[0].type"),
        ({"response_format": {"type": "grammar"}}, "unsupported_parameter", "response_format.type"),
        ({"frequency_penalty": 2.5}, "invalid_parameter", "frequency_penalty"),
        ({"repetition_penalty": 0}, "invalid_parameter", "repetition_penalty"),
        ({"logit_bias": {"5": 101}}, "invalid_parameter", "logit_bias.5"),
        ({"chat_template": "x"}, "unsupported_parameter", "chat_template"),
        ({"messages": None}, "missing_required_parameter", "messages"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": "hi"}, "invalid_type", "messages"),
        ({"messages": [{"role": "user", "content": "x"}, 5]}, "invalid_type", "messages[1]"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
         "missing_required_parameter", "messages[0].tool_calls[0].name"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "unsupported_parameter", "messages[0].content[0].type"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"max_tokens": 0}, "invalid_parameter", "max_tokens"),
        ({"stop": [1]}, "invalid_type", "stop[0]"),
        ({"runtime": {"input_token_ids": [1]}}, "invalid_value", "runtime.input_token_ids"),
        ({"model": "gpt"}, "model_not_found", "model"),
    ],
)  # fmt: skip
def test_what_is_refused_names_the_field(values: JsonObject, code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_chat_request({"messages": MESSAGES, **values}, model="toy")
    assert (caught.value.code, caught.value.param) == (code, param)
