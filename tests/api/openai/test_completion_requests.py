"""Bodies of chat, completions and the tokenizer: what is read, ignored and refused."""

from collections.abc import Callable

import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.chat_requests import ChatRequest, read_chat_request
from triolet.api.openai.completion_requests import (
    PROMPTS_MAX,
    CompletionsRequest,
    read_completions_request,
)
from triolet.api.openai.tokenizer_request import (
    TokenizeRequest,
    read_detokenize_request,
    read_tokenize_request,
)
from triolet.api.schema.fields import JsonObject
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.text.prompts import ChatPrompt

from ..answers import CALLS

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL: JsonObject = {"type": "function", "function": {"name": "f", "parameters": {}}}


def read_chat(**values: object) -> ChatRequest:
    return read_chat_request({"messages": MESSAGES, **values}, model="toy")


def read_completion(**values: object) -> CompletionsRequest:
    return read_completions_request({"prompt": "a", **values}, model="toy")


def read_tokenize(**values: object) -> TokenizeRequest:
    return read_tokenize_request(values, model="toy")


def test_fields_of_chat() -> None:
    request = read_chat(
        model="toy",
        max_tokens=9,
        temperature=0.5,
        stop=["a", "b"],
        seed=1,
        ignore_eos=True,
        min_tokens=2,
        stream=True,
        stream_options={"include_usage": True},
        runtime={"token_ids": True},
    )
    assert request.prompt == ChatPrompt(MESSAGES)
    assert request.sampling == SamplingParams(
        max_tokens=9, temperature=0.5, stop=("a", "b"), seed=1, ignore_eos=True, min_tokens=2
    )
    options = request.options
    assert (options.stream, options.include_usage, options.token_ids) == (True, True, True)
    assert read_chat(max_tokens=9, max_completion_tokens=4).sampling.max_tokens == 4
    ids = read_chat_request({"runtime": {"input_token_ids": [5]}}, model="toy")
    assert ids.prompt == [5]


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
    read_chat(**values)


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
    request = read_completion(prompt=prompt)
    assert request.prompts == prompts
    assert request.sampling == SamplingParams(max_tokens=16)
    assert request.generates


def test_fields_of_completions() -> None:
    request = read_completion(
        max_tokens=3,
        temperature=0,
        top_k=-1,
        stop="x",
        stream=True,
        stream_options={"include_usage": True},
        echo=True,
        add_special_tokens=False,
        priority=4,
        cache_salt="s",
        best_of=1,
        suffix="",
    )
    assert request.sampling == SamplingParams(max_tokens=3, temperature=0, top_k=0, stop=("x",))
    assert (request.options.stream, request.options.include_usage) == (True, True)
    assert (request.echo, request.add_special_tokens) == (True, False)
    assert (request.options.runtime.priority, request.options.runtime.cache_salt) == (4, "s")


@pytest.mark.parametrize(
    ("values", "logprobs", "prompt_logprobs", "beside"),
    [
        ({"logprobs": 2}, 2, None, False),
        ({"logprobs": 2, "echo": True}, 2, 2, False),
        ({"logprobs": 2, "echo": True, "stream": True}, 2, 2, False),
        ({"logprobs": 2, "echo": True, "prompt_logprobs": 3}, 2, 3, True),
        ({"prompt_logprobs": 0}, None, 0, True),
        ({"echo": True}, None, None, False),
    ],
)
def test_whose_logprobs_are_computed(
    values: JsonObject, logprobs: int | None, prompt_logprobs: int | None, beside: bool
) -> None:
    request = read_completion(**values)
    sampling = request.sampling
    assert (sampling.logprobs, sampling.prompt_logprobs) == (logprobs, prompt_logprobs)
    assert request.with_prompt_logprobs == beside
    named = request.names.get("prompt_logprobs", "prompt_logprobs")
    assert named == ("prompt_logprobs" if beside else "logprobs"), "the field that asked for them"


def test_a_prompt_is_scored_by_computing_it_and_echoed_without() -> None:
    scored = read_completion(echo=True, max_tokens=0, logprobs=1)
    assert (scored.generates, scored.keeps_output, scored.sampling.max_tokens) == (True, False, 1)
    assert not read_completion(echo=True, max_tokens=0).generates


def test_our_own_object_wins_over_the_top_level() -> None:
    request = read_completion(
        max_tokens=9,
        seed=1,
        top_p=0.5,
        priority=2,
        cache_salt="top",
        runtime={"seed": 5, "priority": 7, "token_ids": True},
    )
    sampling, runtime = request.sampling, request.options.runtime
    assert (sampling.seed, sampling.top_p, sampling.max_tokens) == (5, 0.5, 9)
    assert (runtime.priority, runtime.cache_salt) == (7, "top")
    assert request.options.token_ids


def test_a_text_gets_special_tokens_and_a_conversation_has_them() -> None:
    text = read_tokenize(prompt="a", return_token_strs=True)
    assert (text.prompt, text.add_special_tokens, text.return_token_strs) == ("a", True, True)
    chat = read_tokenize(messages=MESSAGES, add_generation_prompt=False)
    assert (chat.prompt, chat.add_special_tokens) == (ChatPrompt(MESSAGES, False), False)
    values: JsonObject = {"messages": MESSAGES, "tools": [TOOL]}
    shown = read_tokenize_request(values, model="toy", answer_format=CALLS)
    assert isinstance(shown.prompt, ChatPrompt)
    assert [tool["function"]["name"] for tool in shown.prompt.tools or ()] == ["f"]
    assert read_detokenize_request({"tokens": [1, 2]}, model="toy") == [1, 2]


INVALID, UNSUPPORTED = "invalid_value", "unsupported_parameter"
MISSING, TYPE = "missing_required_parameter", "invalid_type"


@pytest.mark.parametrize(
    ("read", "values", "code", "param"),
    [
        (read_chat, {"best_of": 2}, UNSUPPORTED, "best_of"),
        (read_chat, {"use_beam_search": True}, UNSUPPORTED, "use_beam_search"),
        (read_chat, {"lora_request": {"lora_int_id": 1}}, UNSUPPORTED, "lora_request"),
        (read_chat, {"kv_transfer_params": {"a": 1}}, UNSUPPORTED, "kv_transfer_params"),
        (read_chat, {"top_logprobs": 2}, INVALID, "top_logprobs"),
        (read_chat, {"prompt_logprobs": 1, "stream": True}, INVALID, "prompt_logprobs"),
        (read_chat, {"chat_template": "x"}, UNSUPPORTED, "chat_template"),
        (read_chat, {"messages": None}, MISSING, "messages"),
        (read_chat, {"messages": []}, INVALID, "messages"),
        (read_chat, {"messages": [*MESSAGES, 5]}, TYPE, "messages[1]"),
        (read_chat, {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
         MISSING, "messages[0].tool_calls[0].name"),
        (read_chat, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         UNSUPPORTED, "messages[0].content[0].type"),
        (read_chat, {"stream_options": {"include_usage": True}}, INVALID, "stream_options"),
        (read_chat, {"min_tokens": 5, "max_tokens": 4}, "invalid_parameter", "min_tokens"),
        (read_chat, {"runtime": {"input_token_ids": [1]}}, INVALID, "runtime.input_token_ids"),
        (read_chat, {"model": "gpt"}, "model_not_found", "model"),
        (read_completion, {"prompt": None}, MISSING, "prompt"),
        (read_completion, {"prompt": []}, INVALID, "prompt"),
        (read_completion, {"prompt": [[]]}, INVALID, "prompt[0]"),
        (read_completion, {"prompt": [1, "a"]}, TYPE, "prompt[1]"),
        (read_completion, {"prompt": [True]}, TYPE, "prompt[0]"),
        (read_completion, {"prompt": ["a", 1]}, TYPE, "prompt[1]"),
        (read_completion, {"prompt": [[1], [2, "a"]]}, TYPE, "prompt[1][1]"),
        (read_completion, {"prompt": ["a"] * (PROMPTS_MAX + 1)}, INVALID, "prompt"),
        (read_completion, {"prompt": ["a"] * (PROMPTS_MAX // 2), "n": 3}, INVALID, "n"),
        (read_completion, {"max_tokens": 0}, INVALID, "max_tokens"),
        (read_completion, {"suffix": "x"}, UNSUPPORTED, "suffix"),
        (read_completion, {"prompt_embeds": "QUJD"}, UNSUPPORTED, "prompt_embeds"),
        (read_completion, {"runtime": {"input_token_ids": [1]}}, INVALID,
         "runtime.input_token_ids"),
        (read_tokenize, {}, MISSING, "prompt"),
        (read_tokenize, {"prompt": "a", "messages": MESSAGES}, MISSING, "prompt"),
        (read_tokenize, {"messages": MESSAGES, "tools": [{}]}, UNSUPPORTED, "tools[0].type"),
        (read_tokenize, {"messages": MESSAGES, "tools": [TOOL]}, UNSUPPORTED, "tools"),
    ],
)  # fmt: skip
def test_what_is_refused_names_the_field(
    read: Callable[..., object], values: JsonObject, code: str, param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        read(**values)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_a_seed_of_minus_one_is_left_out() -> None:
    assert read_chat(seed=-1).sampling.seed is None
    with pytest.raises(ApiError, match="seed"):
        read_chat(seed=-2)
