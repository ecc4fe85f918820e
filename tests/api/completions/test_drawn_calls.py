"""Calls drawn from the grammars of all formats, said by all protocols and taken back by them."""

import itertools
import json
import math
import re
from random import Random
from typing import Any

import attrs
import pytest

from triolet.engine.messages import FinishReason
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.runtime.text.prompts import ChatPrompt, Prompt
from triolet.runtime.text.tool_calls import Tool

from ...engine.grammar.drawn import drawn_of
from ...runtime.text.test_answer_format import FAMILIES, FOLDER, format_of, template_of
from ...runtime.text.test_drawn_calls import PARAMETERS, STEPS
from ...runtime.text.turns import cut
from ..anthropic.events import events_of, message_of
from ..chunks import frames_of, said_of
from ..fakes import (
    HELLO,
    Answer,
    FakeGenerator,
    HttpClient,
    Say,
    Script,
    make_application,
    open_client,
)

SEEDS = 16
USER = {"role": "user", "content": "hi"}
RESULT = "Rain."
# A function of each kind; its name begins with a letter of its own, so that all are drawn.
TOOLS = [Tool(f"{chr(97 + place)}_tool", each) for place, each in enumerate(PARAMETERS.values())]
FUNCTIONS = [tool.for_template() for tool in TOOLS]
CHAT: dict[str, Any] = {"tools": FUNCTIONS}
RESPONSES: dict[str, Any] = {
    "tools": [{"type": "function", **each["function"]} for each in FUNCTIONS]
}
MESSAGES: dict[str, Any] = {
    "model": "toy",
    "max_tokens": 99,
    "tools": [{"name": each.name, "input_schema": each.parameters} for each in TOOLS],
}
# What stands before the arguments' object in the text of a model.
HEADS = {
    "hermes": r'\{"name": "(.*?)", "arguments": ',
    "llama3": r'\{"name": "(.*?)", "parameters": ',
    "mistral_list": r'\{"name": "(.*?)", "arguments": ',
    "mistral": r"\[TOOL_CALLS\](.*?)\[ARGS\]",
    "gpt_oss": r"commentary to=functions\.(.*?) <\|constrain\|>json<\|message\|>",
}
XML_CALL = re.compile(r"<function=(.*?)>\n(.*?)</function>", re.DOTALL)
XML_ARGUMENT = re.compile(r"<parameter=(.*?)>\n(.*?)\n?</parameter>\n", re.DOTALL)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
# Members in their order, numbers in their digits.
DECODER = json.JSONDecoder(parse_float="#{}".format, parse_int="#{}".format)


@attrs.define(eq=False)
class Listening(FakeGenerator):
    """Keeps the conversations that it was asked."""

    asked: list[ChatPrompt] = attrs.field(factory=list, init=False)

    async def tokenize(
        self, prompt: str | ChatPrompt, *, add_special_tokens: bool, principal: str = ""
    ) -> list[int]:
        if isinstance(prompt, ChatPrompt):
            self.asked.append(prompt)
        return [1]

    def _script_for(self, prompt: Prompt) -> Script:
        if isinstance(prompt, ChatPrompt):
            self.asked.append(prompt)
        return self.script


@attrs.frozen
class Said:
    """One answer: its calls, what is in it beside them, and the turns that the client adds."""

    calls: list[tuple[str, str]]
    text: str
    is_call: bool
    turns: list[Any]


def is_finite(digits: str) -> bool:
    return math.isfinite(float(digits))


def check_arguments(family: str, text: str, calls: list[tuple[str, str]]) -> None:
    """Find the calls of a model's text without the parser, and compare them with what was said."""
    if family == "qwen3_coder":
        meant = XML_CALL.findall(text)
        assert [name for name, _ in calls] == [name for name, _ in meant], text
        for (_, said), (_, body) in zip(calls, meant, strict=True):
            arguments, values = DECODER.decode(said), XML_ARGUMENT.findall(body)
            assert list(arguments) == [name for name, _ in values], text
            for value, (_, written) in zip(arguments.values(), values, strict=True):
                is_text = isinstance(value, str) and value == written
                assert is_text or value == DECODER.decode(written), (text, said)
        return
    place = 0
    for name, said in calls:
        head = re.compile(HEADS[family], re.DOTALL).search(text, place)
        assert head is not None, text
        arguments, place = DECODER.raw_decode(text, head.end())
        assert (name, json.dumps(DECODER.decode(said))) == (head[1], json.dumps(arguments)), text
    assert re.compile(HEADS[family]).search(text, place) is None, text


def json_of(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    return answer.json


def written(value: Any) -> str:
    """JSON of what `DECODER` has read."""
    return re.sub(r'"#([-+.\deE]+)"', r"\1", json.dumps(value))


async def said_by_chat(client: HttpClient, choice: str) -> list[Said]:
    body = {**CHAT, "messages": [USER], "tool_choice": choice}
    whole = json_of(await client.request("POST", "/v1/chat/completions", body))["choices"][0]
    streamed = await client.request("POST", "/v1/chat/completions", {**body, "stream": True})
    said, _ = said_of(list(frames_of(streamed.body)))
    pieces = [value for key, value in said[0].items() if key[0] == "call"]
    again: dict[str, Any] = {
        "role": "assistant",
        "content": said[0]["text"],
        "reasoning_content": said[0]["reasoning"],
        "tool_calls": [
            {"id": head["id"], "function": {**head["function"], "arguments": piece["arguments"]}}
            for piece in pieces
            for head in piece["heads"]
        ],
    }
    found = list[Said]()
    for message, is_call in (
        (whole["message"], whole["finish_reason"] == "tool_calls"),
        (again, ("tool_calls", None) in said[0]["heads"]),
    ):
        made = message.get("tool_calls", [])
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in made]
        ids = [call["id"] for call in made]
        results = [{"role": "tool", "tool_call_id": each, "content": RESULT} for each in ids]
        found.append(Said(calls, message["content"] or "", is_call, [message, *results]))
    return found


async def said_by_responses(client: HttpClient, choice: str) -> list[Said]:
    body = {**RESPONSES, "input": [USER], "tool_choice": choice}
    whole = json_of(await client.request("POST", "/v1/responses", body))
    streamed = await client.request("POST", "/v1/responses", {**body, "stream": True})
    events = list(streamed.events())
    found = list[Said]()
    for response in (whole, events[-1]["response"]):
        items = [each for each in response["output"] if each["type"] == "function_call"]
        calls = [(each["name"], each["arguments"]) for each in items]
        text = "".join(each["type"] for each in response["output"] if each["type"] == "message")
        results = [
            {"type": "function_call_output", "call_id": each["call_id"], "output": RESULT}
            for each in items
        ]
        is_call = response["status"] == "completed"
        found.append(Said(calls, text, is_call, [*response["output"], *results]))
        found.append(Said(calls, text, is_call, [response["id"], *results]))
    pieces = dict[str, str]()
    for event in events:
        assert not event["type"].startswith("response.output_text")
        if event["type"] == "response.function_call_arguments.delta":
            pieces[event["item_id"]] = pieces.get(event["item_id"], "") + event["delta"]
    assert [*pieces.values()] == [given for _, given in found[-1].calls if given]
    return found


async def said_by_messages(client: HttpClient, choice: str) -> list[Said]:
    kind = {"required": "any"}.get(choice, choice)
    body = {**MESSAGES, "messages": [USER], "tool_choice": {"type": kind}}
    answer = await client.request("POST", "/v1/messages", body)
    streamed = await client.request("POST", "/v1/messages", {**body, "stream": True})
    events = list(events_of(streamed.body))
    pieces = dict[int, str]()
    for event in events:
        if event.get("content_block", {}).get("type") == "tool_use":
            pieces[event["index"]] = ""
        elif "partial_json" in event.get("delta", {}):
            pieces[event["index"]] += event["delta"]["partial_json"]
    blocks = DECODER.decode(answer.body.decode())["content"]
    inputs = [written(each["input"]) for each in blocks if each["type"] == "tool_use"]
    found = list[Said]()
    for message, arguments in (
        (json_of(answer), inputs),
        (message_of(events), [*pieces.values()]),
    ):
        content = message["content"]
        calls = [each for each in content if each["type"] == "tool_use"]
        for call in calls:  # one that was cut is a client's to complete
            call["input"] = {} if isinstance(call["input"], str) else call["input"]
        text = "".join(each["text"] for each in content if each["type"] == "text")
        said = list(zip([each["name"] for each in calls], arguments, strict=True))
        results = [
            {"type": "tool_result", "tool_use_id": each["id"], "content": RESULT} for each in calls
        ]
        after = {"role": "user", "content": results or RESULT}
        turns = [{"role": "assistant", "content": content}, after]
        found.append(Said(said, text, message["stop_reason"] == "tool_use", turns))
    return found


async def said_by_all(client: HttpClient, choice: str) -> dict[str, list[Said]]:
    """The answers of all protocols, whole and streamed, by the path that takes them back."""
    return {
        "/v1/chat/completions": await said_by_chat(client, choice),
        "/v1/responses": await said_by_responses(client, choice),
        "/v1/messages": await said_by_messages(client, choice),
    }


def drawn_texts(family: str) -> list[str]:
    wanted = StructuredOutputs.grammar(format_of(family).forced(TOOLS, calls_max=2))
    drawn = drawn_of(wanted, range(SEEDS), STEPS)
    # No client's JSON has numbers beyond a double.
    texts = [each for each in drawn if each and all(map(is_finite, NUMBER.findall(each)))]
    assert len(texts) >= SEEDS // 4, "most are whole"
    return texts


def generator_of(family: str) -> Listening:
    source = (FOLDER / f"{family}.jinja").read_text()
    return Listening(chat_template=source, max_model_len=10**6)


async def prompts_of(
    client: HttpClient, family: str, generator: Listening, answers: dict[str, list[Said]]
) -> set[str]:
    """What the model is shown when each of these answers is sent back by its protocol."""
    found = set[str]()
    generator.script = HELLO
    for path, said in answers.items():
        for turns in (each.turns for each in said):
            match path, turns:
                case "/v1/responses", [str(response_id), *items]:
                    body = {**RESPONSES, "input": items, "previous_response_id": response_id}
                case "/v1/responses", _:
                    body = {**RESPONSES, "input": [USER, *turns]}
                case _:
                    body = {**(CHAT if "chat" in path else MESSAGES), "messages": [USER, *turns]}
            json_of(await client.request("POST", path, body))
            found.add(rendered(family, generator.asked[-1]))
    return found


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_call_is_said_and_taken_back_by_each_protocol(family: str) -> None:
    generator = generator_of(family)
    async with open_client(make_application(generator)) as client:
        for number, text in enumerate(drawn_texts(family)):
            chance = Random(number)
            places = [chance.randrange(len(text) + 1) for _ in range(chance.randrange(9))]
            generator.script = [Say(piece) for piece in cut(text, places)]
            choice = chance.choice(["auto", "required"])
            answers = await said_by_all(client, choice)
            for said in itertools.chain(*answers.values()):
                assert (said.text, said.is_call) == ("", True), text
                check_arguments(family, text, said.calls)
            prompts = await prompts_of(client, family, generator, answers)
            assert len(prompts) == 1, (text, prompts)


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_call_that_is_cut_is_no_content_and_is_taken_back(family: str) -> None:
    generator = generator_of(family)
    generator.finish_reason = FinishReason.LENGTH
    async with open_client(make_application(generator)) as client:
        for number, text in enumerate(drawn_texts(family)):
            chance = Random(number)
            begun = text[: chance.randrange(1, len(text))]
            places = [chance.randrange(len(begun) + 1) for _ in range(chance.randrange(9))]
            generator.script = [Say(piece) for piece in cut(begun, places)]
            answers = await said_by_all(client, "required")
            messages = answers.pop("/v1/messages")  # which have no words for half an object
            assert {each.text for each in messages} == {""}, begun
            found = [each for said in answers.values() for each in said]
            assert {(each.text, *each.calls) for each in found} == {("", *found[0].calls)}, begun
            prompts = await prompts_of(client, family, generator, answers)
            # An answer without anything is an empty turn in chat, and none among items.
            assert len(prompts) == 1 or not found[0].calls, (begun, prompts)
            await prompts_of(client, family, generator, {"/v1/messages": messages})


def rendered(family: str, prompt: ChatPrompt) -> str:
    """The text of a prompt, with names of calls that are the same for all."""
    text = json.dumps(prompt.messages)
    ids = [each["id"] for message in prompt.messages for each in message.get("tool_calls", [])]
    for place, call_id in enumerate(ids):
        text = text.replace(call_id, f"call{place:05}")
    return template_of(family).render(json.loads(text), tools=prompt.tools)
