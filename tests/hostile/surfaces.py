"""Requests that ask for one form, through each field of each protocol that takes one."""

import json
from typing import Any

import attrs

from triolet.engine.structured_outputs import GrammarKind
from triolet.fuzz.fuzzers.grammars import Ask

Json = dict[str, Any]
CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/chat/completions",
    "/completions",
    "/responses",
    "/messages",
)
PROMPT = "Tell me something about a dog, please."
ASKED: Json = {"messages": [{"role": "user", "content": PROMPT}]}
MODEL: Json = {"model": "triolet-bundled"}


@attrs.frozen
class Request:
    """One POST; `surface` is the field that has the form."""

    surface: str
    path: str
    body: Json


def chat(surface: str, tokens: int, **fields: Any) -> Request:
    """A chat of at most so many tokens."""
    return Request(surface, CHAT, {**MODEL, **ASKED, "max_tokens": tokens, **fields})


def chat_format(schema: Any, tokens: int) -> Request:
    """OpenAI's field for a schema."""
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}}
    return chat("response_format", tokens, response_format=form)


def chat_tool(parameters: Any, tokens: int, **function: Any) -> Request:
    """A call that is forced, to a function with these parameters."""
    tool = {"name": "call", "parameters": parameters, **function}
    tools = [{"type": "function", "function": tool}]
    return chat("tools", tokens, tools=tools, tool_choice="required")


def responses_format(schema: Any, tokens: int) -> Request:
    """A schema in Responses."""
    form = {"type": "json_schema", "name": "form", "schema": schema}
    body = {"input": PROMPT, "text": {"format": form}, "max_output_tokens": tokens}
    return Request("text.format", RESPONSES, {**MODEL, **body})


def responses_tool(parameters: Any, tokens: int) -> Request:
    """A forced call in Responses."""
    tools = [{"type": "function", "name": "call", "parameters": parameters, "strict": False}]
    body = {"input": PROMPT, "tools": tools, "tool_choice": "required"}
    return Request("tools of Responses", RESPONSES, {**MODEL, **body, "max_output_tokens": tokens})


def messages_tool(parameters: Any, tokens: int) -> Request:
    """A forced call in Anthropic's Messages."""
    tools = [{"name": "call", "input_schema": parameters}]
    body = {**ASKED, "tools": tools, "tool_choice": {"type": "any"}, "max_tokens": tokens}
    return Request("tools of Messages", MESSAGES, {**MODEL, **body})


def outputs(kind: str, value: Any, tokens: int) -> Request:
    """vLLM's field for any form."""
    return chat(f"structured_outputs.{kind}", tokens, structured_outputs={kind: value})


def completion(schema: Any, tokens: int) -> Request:
    """A schema for a completion."""
    body = {"prompt": PROMPT, "guided_json": schema, "max_tokens": tokens}
    return Request("guided_json", COMPLETIONS, {**MODEL, **body})


def lark(schema: Any, tokens: int) -> Request:
    """A schema inside of a grammar."""
    return outputs("grammar", f"start: %json {json.dumps(schema)}", tokens)


# Fields that take a schema, and those that take the parameters of a function.
SCHEMA_FIELDS = (chat_format, responses_format, completion, lark)
PARAMETER_FIELDS = (chat_tool, responses_tool, messages_tool)


def request_of(ask: Ask, number: int, tokens: int) -> Request:
    """What a client sends for a drawn form; schemas go through all fields in turn.

    Raises `ValueError` of a number that Python does not read.
    """
    match ask.kind:
        case GrammarKind.JSON_SCHEMA:
            makers = (*SCHEMA_FIELDS, *PARAMETER_FIELDS)
            return makers[number % len(makers)](json.loads(ask.text), tokens)
        case GrammarKind.JSON_OBJECT:
            return chat("json_object", tokens, response_format={"type": "json_object"})
        case GrammarKind.CHOICE:
            return outputs("choice", json.loads(ask.text), tokens)
        case GrammarKind.REGEX | GrammarKind.GRAMMAR:
            return outputs(ask.kind.value, ask.text, tokens)
