"""Models of each family below the real engine: tools and reasoning through HTTP, from a folder.

The models are scripted (`scripted_models`): their weights make them say what a strong one would.
The chat templates are ours, to the families' documented formats, and the families' own.
"""

import json
import pathlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest

from triolet.api.application import Application
from triolet.fuzz.doubles.bed import open_bed

from ...runtime.scripted_models import scripted_model
from ...runtime.text.originals import needs_originals, original
from ..chunks import frames_of
from ..fakes import HttpClient, open_client, open_responses

TEMPLATES = pathlib.Path(__file__).parents[2] / "runtime" / "text" / "templates"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "parameters": CITY}
ASKED: dict[str, Any] = {
    "temperature": 0,
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "hi"}],
}
TOOLS = {"tools": [{"type": "function", "function": FUNCTION}]}
SAID = {
    "input": "hi",
    "temperature": 0,
    "max_output_tokens": 64,
    "tools": [{"type": "function", **FUNCTION}],
}
HM = "The user wants the weather."


@attrs.frozen
class Family:
    """What its model writes before and as a call, in tokens; some are special ones."""

    template: str
    reasoning: Sequence[str]
    call: Sequence[str]
    specials: Sequence[str] = ()

    @property
    def script(self) -> list[str]:
        return [*self.reasoning, *self.call]


THINK = ["<think>", "\nThe user ", "wants the", " weather.", "</think>"]
OSLO = ['{"city": ', '"Os', 'lo"', "}"]
HERMES = ["<tool_call>", '\n{"name": "get_', 'weather", ', '"arguments": ', *OSLO, "}\n"]
CODER = ["<tool_call>", "\n<function=", "get_weather", ">\n<para", "meter=city>\n", "Os", "lo"]
THINK_MISTRAL = ["[THINK]", "The user ", "wants the", " weather.", "[/THINK]"]
MISTRAL = ["[TOOL_CALLS]", "get_", "weather", "[ARGS]", *OSLO]
MISTRAL_LIST = ["[TOOL_CALLS]", '[{"name": ', '"get_weather', '", "arguments": ', *OSLO, "}]"]
LLAMA = ['{"name": "', 'get_weather"', ', "para', 'meters": ', *OSLO, "} "]
CHANNELS = ("<|channel|>", "<|constrain|>", "<|message|>")
HARMONY = [CHANNELS[0], "commentary to=", "functions.get_weather ", CHANNELS[1], "json"]
FAMILIES = {
    "hermes": Family("hermes", THINK, [*HERMES, "</tool_call>"]),
    "qwen3_coder": Family(
        "qwen3_coder", (), [*CODER, "\n</para", "meter>\n", "</function>\n", "</tool_call>"]
    ),
    "llama3": Family("llama3", (), LLAMA),
    "mistral_list": Family("mistral_list", (), MISTRAL_LIST, ["[TOOL_CALLS]"]),
    "mistral": Family(
        "mistral", THINK_MISTRAL, MISTRAL, ["[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]"]
    ),
    "gpt_oss": Family("gpt_oss", (), [*HARMONY, CHANNELS[2], *OSLO], CHANNELS),
}


# A model folder as its family's is: the original template, some of which open the reasoning.
ORIGINALS = {
    "qwen3": FAMILIES["hermes"],
    "qwen3_5_think": attrs.evolve(FAMILIES["qwen3_coder"], reasoning=THINK[1:]),
    "nemotron_3_nano": attrs.evolve(FAMILIES["qwen3_coder"], reasoning=THINK[1:]),
    "llama3_1": FAMILIES["llama3"],
    "mistral_v3": FAMILIES["mistral_list"],
    "mistral_v13": FAMILIES["mistral"],
    "gptoss": FAMILIES["gpt_oss"],
}


def template_of(family: Family) -> str:
    return (TEMPLATES / f"{family.template}.jinja").read_text()


@asynccontextmanager
async def serving(folder: pathlib.Path, family: Family, template: str) -> AsyncIterator[HttpClient]:
    scripted_model(folder, template, family.script, specials=family.specials)
    async with open_bed(folder, executor="native", kv_blocks=256) as bed:
        application = Application(bed.frontend)
        async with open_responses(application), open_client(application) as client:
            yield client


@pytest.mark.parametrize("name", FAMILIES)
async def test_a_call_comes_back_as_one(name: str, tmp_path: pathlib.Path) -> None:
    family = FAMILIES[name]
    async with serving(tmp_path, family, template_of(family)) as client:
        for choice in ("auto", "required"):
            await check_a_call(client, family, choice)


@needs_originals
@pytest.mark.parametrize("name", ORIGINALS)
async def test_a_call_comes_back_below_the_original_template(
    name: str, tmp_path: pathlib.Path
) -> None:
    async with serving(tmp_path, ORIGINALS[name], original(name)) as client:
        for choice in ("auto", "required"):
            await check_a_call(client, ORIGINALS[name], choice)


async def check_a_call(client: HttpClient, family: Family, choice: str) -> None:
    body: dict[str, Any] = {**ASKED, **TOOLS, "tool_choice": choice}
    whole = (await client.request("POST", "/v1/chat/completions", body)).json
    answer = await client.request("POST", "/v1/chat/completions", {**body, "stream": True})
    body = {**SAID, "tool_choice": choice}
    response = (await client.request("POST", "/v1/responses", body)).json
    turn = whole["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "Rain."}
    messages = [*ASKED["messages"], turn, result]
    body = {**ASKED, **TOOLS, "messages": messages, "tool_choice": "none", "max_tokens": 1}
    assert (await client.request("POST", "/v1/chat/completions", body)).status == 200
    item = response["output"][-1]
    assert (item["type"], item["status"], item["name"]) == (
        "function_call",
        "completed",
        "get_weather",
    )
    assert json.loads(item["arguments"]) == {"city": "Oslo"}
    thoughts = [each for each in response["output"] if each["type"] == "reasoning"]
    assert [part["text"] for each in thoughts for part in each["content"]] == (
        [HM] if family.reasoning else []
    )
    (given,) = whole["choices"]
    (call,) = given["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    assert (given["finish_reason"], given["message"]["content"]) == ("tool_calls", None)
    deltas = [
        chunk["choices"][0]["delta"] for _, chunk in frames_of(answer.body) if chunk != "[DONE]"
    ]
    calls = [part["function"] for delta in deltas for part in delta.get("tool_calls", [])]
    assert "".join(part["arguments"] for part in calls) == call["function"]["arguments"]
    assert not any(delta.get("content") for delta in deltas)
    if family.reasoning:
        assert given["message"]["reasoning_content"] == HM
        assert "".join(delta.get("reasoning", "") for delta in deltas) == HM
        details = whole["usage"]["completion_tokens_details"]
        assert details["reasoning_tokens"] == len(family.reasoning)


HEAD = '\n{"name": "%s", "arguments": '
END = ["}\n</to", "ol_call>"]
# Calls that a model may make, and how their arguments come to its template when they are sent back.
SAID_CALLS: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "cut": ("get_weather", ['{"pa'], {"unparsed": '{"pa'}),
    "raw line break": ("get_weather", ['{"code": "a\nb"}', *END], {"code": "a\nb"}),
    "no numbers": ("get_weather", ['{"a": [NaN, 1e999]}', *END], {"a": ["NaN", "1e999"]}),
    "half a pair": ("get_weather", [r'{"a": "\ud800"}', *END], {"a": "\ufffd"}),
    "missing brace": (
        "get_weather",
        ['{"city": "Paris"', "\n</to", "ol_call>"],
        {"city": "Paris"},
    ),
    "deep": (
        "get_weather",
        ['{"a":' + "[" * 70 + "]" * 70 + "}", *END],
        {"unparsed": '{"a":' + "[" * 70 + "]" * 70 + "}"},
    ),
    "empty name": ("", ["{}}\n<", "/tool_call>"], {}),
    "odd name": ("get weather!", ["{}}\n<", "/tool_call>"], {}),
}


@pytest.mark.parametrize("said", SAID_CALLS)
async def test_each_call_that_was_said_is_taken_back(said: str, tmp_path: pathlib.Path) -> None:
    """In chat, in Responses by items and by the previous response, and in Messages."""
    name, arguments, shown = SAID_CALLS[said]
    family = Family("hermes", (), ["<tool_call>", HEAD % name, *arguments])
    question = ASKED["messages"]
    async with serving(tmp_path, family, template_of(family)) as client:

        async def post(path: str, body: dict[str, Any]) -> Any:
            answer = await client.request("POST", path, body)
            assert answer.status == 200, answer.body
            return answer.json

        async def tokens(messages: list[Any]) -> int:
            body = {"messages": messages, "tools": TOOLS["tools"]}
            count: int = (await post("/tokenize", body))["count"]
            return count

        chat = await post("/v1/chat/completions", {**ASKED, **TOOLS})
        turn = chat["choices"][0]["message"]
        (call,) = turn["tool_calls"]
        assert call["function"]["name"] == name
        result = {"role": "tool", "tool_call_id": call["id"], "content": "Rain."}
        after = {**ASKED, **TOOLS, "max_tokens": 1, "messages": [*question, turn, result]}
        used = (await post("/v1/chat/completions", after))["usage"]["prompt_tokens"]
        function = {"name": name, "arguments": json.dumps(shown)}
        meant = {**turn, "tool_calls": [{**call, "function": function}]}
        assert used == await tokens([*question, meant, result])

        response = await post("/v1/responses", SAID)
        (item,) = response["output"]
        output = {"type": "function_call_output", "call_id": item["call_id"], "output": "Rain."}
        asked = {"role": "user", "content": "hi"}
        by_items = {**SAID, "max_output_tokens": 1, "input": [asked, item, output]}
        by_id = {**by_items, "input": [output], "previous_response_id": response["id"]}
        for body in (by_items, by_id):
            assert (await post("/v1/responses", body))["usage"]["input_tokens"] == used

        tools = [{"name": "get_weather", "input_schema": CITY}]
        ask = {"model": chat["model"], "max_tokens": 64, "temperature": 0, "tools": tools}
        message = await post("/v1/messages", {**ask, "messages": question})
        (block,) = message["content"]
        results = [{"type": "tool_result", "tool_use_id": block["id"], "content": "Rain."}]
        turns = [*question, {"role": "assistant", "content": [block]}]
        await post(
            "/v1/messages", {**ask, "messages": [*turns, {"role": "user", "content": results}]}
        )
