"""Requests of the Messages protocol: what is asked of the runtime, and what is refused."""

from typing import Any

import attrs
import pytest

from triolet.api.anthropic.messages_request import (
    MessagesRequest,
    read_count_request,
    read_messages_request,
)
from triolet.api.errors import ApiError
from triolet.runtime.text.answer_format import TEXT_ALONE, AnswerFormat
from triolet.runtime.text.prompts import ChatPrompt
from triolet.runtime.text.tool_calls import ToolChoice

from ..answers import CALLS, THINKING_CALLS

HI = {"role": "user", "content": "hi"}
BODY: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [HI]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
F = {"name": "f", "description": "it", "input_schema": SCHEMA}
G = {"name": "g", "input_schema": {"type": "object"}, "type": "custom", "strict": True}
SWITCHED = attrs.evolve(THINKING_CALLS, variables=frozenset({"enable_thinking"}))


def read(answer_format: AnswerFormat = CALLS, **fields: Any) -> MessagesRequest:
    return read_messages_request({**BODY, **fields}, model="m", answer_format=answer_format)


def prompt_of(request: MessagesRequest) -> ChatPrompt:
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt


def test_sampling_and_stream_are_those_of_a_chat() -> None:
    request = read(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        stop_sequences=["a", "b"],
        stream=True,
        runtime={"seed": 3, "priority": 2},
    )
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (9, 0.5, 0.9)
    assert (sampling.top_k, list(sampling.stop), sampling.seed) == (7, ["a", "b"], 3)
    assert request.options.stream
    assert request.options.runtime.priority == 2


@pytest.mark.parametrize("model", [None, "m", "claude-opus-5-5", "claude-haiku-4-5-20251001"])
def test_names_of_claude_are_the_served_model(model: str | None) -> None:
    assert prompt_of(read(model=model)).messages == [HI]


def test_what_steers_other_servers_is_ignored() -> None:
    read(
        metadata={"user_id": "u"},
        service_tier="auto",
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        cache_control={"type": "ephemeral"},
        container=None,
        mcp_servers=[],
        speed="fast",
    )


def test_the_system_prompt_is_the_first_message() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [HI, {"role": "system", "content": "c"}]
    request = read(system=blocks, messages=messages)
    assert prompt_of(request).messages == [{"role": "system", "content": "a\nb\nc"}, HI]


def test_tools_are_shown_as_functions() -> None:
    request = read(tools=[F, {"type": "web_search_20250305", "name": "web_search"}, G])
    assert [(tool.name, tool.strict) for tool in request.tools.tools] == [("f", False), ("g", True)]
    shown = prompt_of(request).tools
    assert shown is not None
    function = {"name": "f", "description": "it", "parameters": SCHEMA}
    assert shown[0] == {"type": "function", "function": function}
    assert request.tools.given.ignored == ("web_search_20250305",)


CHOICES: list[tuple[dict[str, Any], tuple[ToolChoice, str | None, bool]]] = [
    ({"type": "auto"}, (ToolChoice.AUTO, None, True)),
    ({"type": "auto", "disable_parallel_tool_use": True}, (ToolChoice.AUTO, None, False)),
    ({"type": "any"}, (ToolChoice.REQUIRED, None, True)),
    ({"type": "tool", "name": "f"}, (ToolChoice.REQUIRED, "f", True)),
    ({"type": "none"}, (ToolChoice.NONE, None, True)),
]


@pytest.mark.parametrize(("choice", "wanted"), CHOICES)
def test_choices_of_tools(
    choice: dict[str, Any], wanted: tuple[ToolChoice, str | None, bool]
) -> None:
    use = read(tools=[F], tool_choice=choice).tools
    assert (use.choice.choice, use.choice.name, use.is_parallel) == wanted
    form = use.form()
    assert (form is not None) == (wanted[0] is ToolChoice.REQUIRED)


def test_a_deferred_tool_is_shown_when_the_conversation_names_it() -> None:
    tools = [F, {**G, "defer_loading": True}]
    assert [tool.name for tool in read(tools=tools).tools.tools] == ["f"]
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    loaded = [{"type": "tool_reference", "tool_name": "g"}]
    result = {"type": "tool_result", "tool_use_id": "t", "content": loaded}
    turns = [
        HI,
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    assert [tool.name for tool in read(tools=tools, messages=turns).tools.tools] == ["f", "g"]
    removal = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}
    turns.append({"role": "system", "content": [removal]})
    assert [tool.name for tool in read(tools=tools, messages=turns).tools.tools] == ["g"]


THOUGHTS: list[tuple[dict[str, Any], dict[str, Any] | None, bool, bool]] = [
    ({}, {"enable_thinking": False}, False, False),
    ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}, False, False),
    (
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"enable_thinking": True},
        True,
        False,
    ),
    ({"thinking": {"type": "adaptive", "display": "omitted"}}, None, True, True),
    (
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
        {"reasoning_effort": "low"},
        True,
        False,
    ),
]


@pytest.mark.parametrize(("fields", "given", "shows", "omits"), THOUGHTS)
def test_thinking_and_effort_are_given_to_the_template(
    fields: dict[str, Any], given: dict[str, Any] | None, shows: bool, omits: bool
) -> None:
    request = read(SWITCHED, **fields)
    assert prompt_of(request).arguments == given
    assert (request.with_reasoning, request.omits_thinking) == (shows, omits)


@pytest.mark.parametrize("name", ["output_config", "output_format"])
def test_a_form_of_the_answer(name: str) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    fields: dict[str, Any] = {name: {"format": form} if name == "output_config" else form}
    request = read(**fields)
    assert request.sampling.structured_outputs is not None
    assert request.names["structured_outputs"] == "output_config.format"
    assert request.names["prompt"] == "messages"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": None}, "messages"),
    ({"model": "gpt"}, "model"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"system": 7}, "system"),
    ({"thinking": {}}, "thinking.type"),
    ({"thinking": {"type": "much"}}, "thinking.type"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
    ({"tools": [F, F]}, "tools[1]"),
    ({"tools": [{**F, "type": "unheard of"}]}, "tools[0].type"),
    ({"tools": [{**F, "type": ""}]}, "tools[0].type"),
    ({"tools": [F] * 129}, "tools"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [F], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [F], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
    ({"tools": [F], "tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"tools": [F], "tool_choice": "auto"}, "tool_choice"),
    ({"tools": [F], "tool_choice": {"type": "auto", "name": {}}}, "tool_choice.name"),
    ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ({"output_format": {"type": "json_schema", "schema": "{}"}}, "output_format.schema"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ({"max_tokens": 3, "runtime": {"min_tokens": 4}}, "runtime.min_tokens"),
    ({"runtime": {"keep_s": 3}}, "runtime.keep_s"),
    ({"runtime": {"token_ids": True}}, "runtime.token_ids"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
]


@pytest.mark.parametrize(("fields", "path"), REFUSED)
def test_what_is_wrong_is_refused_by_its_path(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(**fields)
    assert caught.value.param == path


def test_what_the_runtime_refuses_later_has_the_name_of_its_field_too() -> None:
    names = read(runtime={"logit_bias": {"5": 1.0}}).names
    assert names["logit_bias"] == "runtime.logit_bias"
    assert names["prompt"] == "messages"


def test_a_model_without_a_format_for_calls_takes_no_tools() -> None:
    with pytest.raises(ApiError, match="chat template"):
        read(TEXT_ALONE, tools=[F])
    read(TEXT_ALONE, tools=[F], tool_choice={"type": "none"})


def test_tokens_are_counted_of_the_same_prompt() -> None:
    fields: dict[str, Any] = {"system": "a", "tools": [F], "thinking": {"type": "adaptive"}}
    body = {"model": "m", "messages": [HI], **fields}
    prompt = read_count_request(body, model="m", answer_format=SWITCHED)
    assert prompt == read(SWITCHED, **fields).prompt
    with pytest.raises(ApiError):
        read_count_request({**body, "model": "gpt"}, model="m")
