"""Bodies of Responses: what is read, ignored, refused, and under which name."""

from collections.abc import Callable

import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.fields.message_fields import MESSAGES_MAX
from triolet.api.openai.fields.responses_fields import RESPONSES, check_model
from triolet.api.openai.responses_request import (
    ResponseRequest,
    ResumeRequest,
    read_credit,
    read_event_id,
    read_response_request,
    read_resume_request,
    read_stream_id,
)
from triolet.api.schema.fields import JsonObject
from triolet.engine.sampling_params import SamplingParams


def read(**values: object) -> ResponseRequest:
    return read_response_request({"input": "x", **values}, model="toy")


def test_a_text_input_and_sampling() -> None:
    request = read_response_request(
        {
            "input": "hi",
            "model": "toy",
            "instructions": "Be brief",
            "max_output_tokens": 5,
            "temperature": 0,
            "top_p": 0.5,
            "stream": True,
            "stream_id": "a.b-c_1",
            "metadata": {"k": "v"},
            "runtime": {"seed": 7, "top_k": -1, "stop": "END", "token_ids": True},
        },
        model="toy",
    )
    assert request.input == [{"role": "user", "content": "hi"}]
    assert request.instructions == "Be brief"
    assert request.sampling == SamplingParams(
        max_tokens=5, temperature=0, top_p=0.5, seed=7, top_k=0, stop=("END",)
    )
    assert (request.stream, request.stream_id) == (True, "a.b-c_1")
    assert request.token_ids
    assert request.metadata == {"k": "v"}


def test_a_conversation_of_items() -> None:
    request = read_response_request(
        {
            "input": [
                {"role": "developer", "content": "Be kind"},
                {"type": "message", "role": "user", "content": [
                    {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"},
                ]},
                {"type": "message", "id": "msg_1", "role": "assistant", "content": [
                    {"type": "output_text", "text": "c", "annotations": []},
                ]},
            ]
        },
        model="toy",
    )  # fmt: skip
    assert request.input == [
        {"role": "system", "content": "Be kind"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "c"},
    ]


def test_calls_of_one_turn_are_one_message() -> None:
    said = {"role": "assistant", "content": "Let me see."}
    first, second = (
        {"type": "function_call", "name": name, "call_id": name, "arguments": "{}"}
        for name in ("a", "b")
    )
    result = {"type": "function_call_output", "call_id": "a", "output": "1"}
    user = {"role": "user", "content": "?"}
    request = read_response_request({"input": [user, said, first, second, result]}, model="toy")
    assert [message["role"] for message in request.input] == ["user", "assistant", "tool"]
    turn = request.input[1]
    assert turn["content"] == "Let me see."
    assert [call["function"]["name"] for call in turn["tool_calls"]] == ["a", "b"]
    alone = read_response_request({"input": [user, first, result, second]}, model="toy")
    roles = [message["role"] for message in alone.input]
    assert roles == ["user", "assistant", "tool", "assistant"]


def test_items_of_other_servers() -> None:
    refusal = {"type": "refusal", "refusal": "No."}
    request = read_response_request(
        {
            "input": [
                {"role": "user", "content": "a"},
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
                {"role": "assistant", "content": [{"type": "output_text", "text": "b"}, refusal]},
                {"type": "custom_tool_call_output", "call_id": "c", "output": "d"},
            ]
        },
        model="toy",
    )
    assert request.input == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "bNo."},
        {"role": "tool", "content": "d", "tool_call_id": "c"},
    ]
    assert not request.refers
    for item in ({"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}):
        assert read(input=[item]).refers


def test_how_it_is_kept_and_continued() -> None:
    request = read_response_request(
        {
            "previous_response_id": "resp_1",
            "background": True,
            "generate": False,
            "runtime": {"deadline_ms": 1500, "keep_s": 2, "credit": 0, "merge_ms": 40},
        },
        model="toy",
        now=10.0,
    )
    assert (request.input, request.previous_response_id) == ([], "resp_1")
    assert (request.background, request.generate, request.store) == (True, False, True)
    assert (request.deadline_s, request.keep_s) == (11.5, 2.0)
    assert (request.options.credit, request.options.merge_s) == (0, 0.04)
    ids = read_response_request({"runtime": {"input_token_ids": [1, 2]}}, model="toy")
    assert (ids.input, ids.input_token_ids) == ([], [1, 2])
    assert ids.keeps_token_ids


def test_a_resume_and_a_credit() -> None:
    resume = read_resume_request({"response_id": "r", "starting_after": 3, "stream_id": "a"})
    assert resume == ResumeRequest(response_id="r", starting_after=3, stream_id="a")
    assert read_credit({"add": 5}) == 5


@pytest.mark.parametrize(
    ("read", "values", "code", "param"),
    [
        (read_resume_request, {}, "missing_required_parameter", "response_id"),
        (read_resume_request, {"response_id": 1}, "invalid_type", "response_id"),
        (read_resume_request, {"response_id": "r", "starting_after": "3"}, "invalid_type",
         "starting_after"),
        *((read_resume_request, {"response_id": "r", "starting_after": number},
           "invalid_parameter", "starting_after") for number in (-1, 2**63, 10**30)),
        (read_resume_request, {"response_id": "r", "stream_id": ""}, "invalid_stream_id",
         "stream_id"),
        (read_credit, {}, "missing_required_parameter", "add"),
        (read_credit, {"add": "x"}, "invalid_type", "add"),
        (read_credit, {"add": -1}, "invalid_parameter", "add"),
        (read_credit, {"add": 2**40}, "invalid_parameter", "add"),
        (read_event_id, {"event_id": 7}, "invalid_type", "event_id"),
        (read_event_id, {"event_id": "x" * 513}, "invalid_value", "event_id"),
    ],
)  # fmt: skip
def test_other_events_name_the_field_as_well(
    read: Callable[[JsonObject], object], values: JsonObject, code: str, param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        read(values)
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    "values",
    [
        {"unheard_of": 1},
        {"tools": [], "tool_choice": "auto", "background": False, "truncation": "disabled"},
        {"previous_response_id": None, "conversation": None, "store": True, "user": "u"},
        {"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low"}},
        {"text": {"format": {"type": "text"}, "verbosity": "low"}, "service_tier": "auto"},
        {"parallel_tool_calls": True, "stream_options": {"include_obfuscation": False}},
        {"runtime": None, "metadata": None, "generate": True},
    ],
)
def test_what_asks_for_nothing_is_ignored(values: JsonObject) -> None:
    read(**values)


@pytest.mark.parametrize(
    ("values", "code", "param"),
    [
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].name"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"background": True, "store": False}, "invalid_value", "background"),
        ({"conversation": "c"}, "unsupported_parameter", "conversation"),
        ({"prompt": {"id": "p"}}, "unsupported_parameter", "prompt"),
        ({"truncation": "middle"}, "invalid_value", "truncation"),
        ({"text": {"format": {"type": "json_schema"}}}, "missing_required_parameter",
         "text.format.schema"),
        ({"runtime": {"bad_words": [""]}}, "invalid_value", "runtime.bad_words[0]"),
        ({"runtime": {"n": 2}}, "unknown_parameter", "runtime.n"),
        ({"runtime": {"min_tokens": 9}, "max_output_tokens": 3}, "invalid_parameter",
         "runtime.min_tokens"),
        ({"runtime": {"keep_s": 1}, "store": False}, "invalid_value", "runtime.keep_s"),
        ({"runtime": {"tokens": 1}}, "unknown_parameter", "runtime.tokens"),
        ({"runtime": {"input_token_ids": [1]}}, "invalid_value", "runtime.input_token_ids"),
        ({"runtime": {"input_token_ids": []}}, "invalid_value", "runtime.input_token_ids"),
        ({"input": None}, "missing_required_parameter", "input"),
        ({"input": []}, "invalid_value", "input"),
        ({"input": ["x"]}, "invalid_type", "input[0]"),
        ({"input": [{"content": "x"}]}, "missing_required_parameter", "input[0].role"),
        ({"input": [{"role": "wise", "content": "x"}]}, "unsupported_parameter", "input[0].role"),
        ({"input": [{"role": "user"}]}, "missing_required_parameter", "input[0].content"),
        ({"input": [{"role": "user", "content": 1}]}, "invalid_type", "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "unsupported_parameter", "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "text"}]}]},
         "missing_required_parameter", "input[0].content[0].text"),
        ({"input": [{"type": "function_call_output"}]}, "missing_required_parameter",
         "input[0].output"),
        ({"input": [{"type": "computer_call"}]}, "unsupported_parameter", "input[0].type"),
        ({"model": "other"}, "model_not_found", "model"),
        ({"metadata": {"k": 7}}, "invalid_type", "metadata.k"),
        ({"metadata": {str(n): "" for n in range(17)}}, "invalid_value", "metadata"),
        ({"metadata": {"k" * 65: ""}}, "invalid_value", "metadata"),
    ],
)  # fmt: skip
def test_what_is_refused_names_the_field(values: JsonObject, code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(**values)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.status == (404 if code == "model_not_found" else 400)


@pytest.mark.parametrize("stream_id", ["", "x" * 257, "a b", "ä", "a\n", 7, ["a"]])
def test_names_of_lanes(stream_id: object) -> None:
    with pytest.raises(ApiError) as caught:
        read_stream_id({"stream_id": stream_id})
    assert caught.value.code == "invalid_stream_id"
    for good in (None, "x" * 256, "A-z_0.9"):
        assert read_stream_id({"stream_id": good}) == good


@pytest.mark.parametrize(
    ("values", "logprobs"),
    [
        ({}, None),
        ({"include": ["reasoning.encrypted_content"]}, None),
        ({"top_logprobs": 0}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, 3),
        ({"top_logprobs": 3}, 3),
    ],
)
def test_logprobs_are_included_when_asked_for(values: JsonObject, logprobs: int | None) -> None:
    assert read(**values).sampling.logprobs == logprobs


def test_the_number_of_messages_is_bounded() -> None:
    message = {"role": "user", "content": "x"}
    assert RESPONSES.read({"input": "x"}) == RESPONSES.read({"input": [message]})
    RESPONSES.read({"input": [message] * MESSAGES_MAX})
    with pytest.raises(ApiError, match="at most"):
        RESPONSES.read({"input": [message] * (MESSAGES_MAX + 1)})


def test_metadata_comes_back_as_it_came() -> None:
    assert RESPONSES.read({"metadata": {"a": "b", "c": None}}) == {"metadata": {"a": "b", "c": ""}}


def test_a_long_model_name_is_cut_in_the_answer() -> None:
    with pytest.raises(ApiError) as caught:
        check_model("x" * 10_000, "toy")
    assert len(caught.value.message) < 300
