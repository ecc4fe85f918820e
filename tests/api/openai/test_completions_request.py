"""Bodies of completions: forms of prompts, defaults, and what is refused."""

import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.completion_requests import PROMPTS_MAX, read_completions_request
from triolet.api.schema.fields import JsonObject
from triolet.engine.sampling_params import SamplingParams


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


def test_the_usual_fields() -> None:
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
def test_what_is_refused_names_the_field(values: JsonObject, code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_completions_request({"prompt": "a", **values}, model="toy")
    assert (caught.value.code, caught.value.param) == (code, param)
