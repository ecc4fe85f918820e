"""Inputs of public bug reports of those who serve models, each with the right answer.

Numbers that a library of masks does not hold, functions whose parameters have no type, calls that
were cut and come back, names that are keywords, times that no clock shows, odd but legal fields.
"""

import datetime
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pydantic

from ..structured.forms import json_form
from .surfaces import (
    CHAT,
    PARAMETER_FIELDS,
    PROMPT,
    RESPONSES,
    SCHEMA_FIELDS,
    Json,
    Request,
    chat,
    chat_format,
    chat_tool,
    completion,
    outputs,
    responses_format,
)

# Of an answer that must be whole; times and durations need fewer.
TOKENS = 120
# Says what is wrong with an answer; "" if nothing is.
Judge = Callable[[Json], str]


@attrs.frozen
class Input:
    """One request, the status of its answer, and what else is wrong with that.

    `then` is sent afterwards, made of the answer.
    """

    name: str
    request: Request
    status: int = 200
    judge: Judge = lambda answer: ""
    then: Callable[[Json], Request] | None = None


def all_inputs() -> list[Input]:
    """Every one, always the same."""
    kinds = (_crashes, _digits, _bounds, _forced, _names, _costs, _times, _calls_back, _small)
    return list(itertools.chain.from_iterable(kind() for kind in kinds))


# ---- reading answers


def text_of(answer: Json) -> str | None:
    """The text of an answer that is whole, whatever the protocol; None if it was cut."""
    if "choices" in answer:
        choice = answer["choices"][0]
        if choice["finish_reason"] != "stop":
            return None
        text = choice["message"]["content"] if "message" in choice else choice["text"]
    elif answer.get("status") == "completed":
        text = "".join(
            part["text"] for item in answer["output"] for part in item.get("content", [])
        )
    else:
        return None
    return text if isinstance(text, str) else None


def arguments_of(answer: Json) -> list[object]:
    """The arguments of its calls, read; a text that is no JSON as it is."""
    if "choices" in answer:
        calls = answer["choices"][0]["message"].get("tool_calls") or []
        found = [call["function"]["arguments"] for call in calls]
    elif "output" in answer:
        found = [each["arguments"] for each in answer["output"] if each["type"] == "function_call"]
    else:
        return [each["input"] for each in answer["content"] if each["type"] == "tool_use"]
    return [_read(text) for text in found]


def _read(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _was_cut(answer: Json) -> bool:
    reasons = [choice["finish_reason"] for choice in answer.get("choices", [])]
    return (
        "length" in reasons
        or answer.get("status") == "incomplete"
        or (answer.get("stop_reason") == "max_tokens")
    )


def matches(schema: Any) -> Judge:
    """A judge: a whole answer satisfies the schema to the last digit."""
    form = json_form("", schema)

    def judge(answer: Json) -> str:
        text = text_of(answer)
        return "" if text is None or form.matches(text) else f"violates its schema: {text[:80]}"

    return judge


def _is(value: object) -> Judge:
    def judge(answer: Json) -> str:
        text = text_of(answer)
        return "" if text is not None and json.loads(text) == value else f"not {value}: {text}"

    return judge


def _is_call(answer: Json) -> str:
    calls = arguments_of(answer)
    if _was_cut(answer):
        return ""
    good = len(calls) > 0 and all(isinstance(each, dict) for each in calls)
    return "" if good else f"no call with an object: {calls}"


def _has_no_markup(answer: Json) -> str:
    content = answer["choices"][0]["message"]["content"]
    return f"markup as content: {content!r}" if "<tool" in (content or "") else ""


def _has_usage(answer: Json) -> str:
    """The last chunk has the usage; the others have null."""
    given = [chunk.get("usage", "absent") for chunk in answer["chunks"]]
    good = len(given) > 1 and set(map(str, given[:-1])) == {"None"} and "total_tokens" in given[-1]
    return "" if good else f"usage of chunks: {given}"


# ---- what ended processes, or came out as another number


def _crashes() -> Iterator[Input]:
    numbers = (-(2**63), -(2**63) + 1, -(2**63) + 508, -(2**63) + 512)
    for number, make in itertools.product(numbers, SCHEMA_FIELDS):
        for schema in ({"const": number}, {"enum": [0, number]}):
            yield _refused(f"crash {schema}", make(schema, TOKENS))
    number = -(2**63)
    for make in PARAMETER_FIELDS:
        parameters = {"type": "object", "properties": {"x": {"enum": [number]}}}
        yield _refused("crash in parameters", make(parameters, TOKENS))
    one = {"type": "integer", "minimum": number, "maximum": number}
    yield _refused("crash by a range of one", chat_format(one, TOKENS))
    inside = {"type": "array", "items": {"const": number}}
    yield _refused("crash in a list", chat_format(inside, TOKENS))
    strict = {"type": "object", "properties": {"x": {"const": number}}, "required": ["x"],
              "additionalProperties": False}  # fmt: skip
    yield _refused("crash in a strict function", chat_tool(strict, TOKENS, strict=True))
    harmless = {"type": "boolean", "default": number, "x-sentinel": 1}
    yield Input("the same as a default", chat_format(harmless, TOKENS), judge=matches(harmless))


def _refused(name: str, request: Request) -> Input:
    return Input(name, request, status=400)


def _digits() -> Iterator[Input]:
    """A number comes out with its digits, or the form is refused."""
    for number in (175928847299117063, 9007199254740993, 1298374650123456789):
        for schema in ({"enum": [number]}, {"const": number}):
            yield _refused(f"digits of {schema}", chat_format(schema, TOKENS))
    for number in (2**53 - 1, 2**53, -(2**53), 10**15, 2**31, -(2**31) - 1, 0):
        for make in SCHEMA_FIELDS:
            yield Input(f"exact {number}", make({"const": number}, TOKENS), judge=_is(number))
    for least, most in ((175928847299117063,) * 2, (2**63, 2**63 + 2), (1e19, 1e19)):
        kind = {"type": "integer", "minimum": least, "maximum": most}
        yield _refused(f"range {least} to {most}", chat_format(kind, TOKENS))


def _bounds() -> Iterator[Input]:
    """Bounds that generators write for each field say nothing, and are served."""
    limit, single = 1.7976931348623157e308, 3.4028234663852886e38
    schemas: list[Json] = [
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        {"type": "integer", "minimum": -(2**63)},
        {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
        {"type": "integer", "minimum": 1 - 2**53, "maximum": 2**53 - 1},
        {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
        {"type": "number", "minimum": -limit, "maximum": limit},
        {"type": "number", "minimum": -single, "maximum": single},
    ]
    for schema, make in itertools.product(schemas, (chat_format, responses_format, completion)):
        yield Input(f"bounds {schema}", make(schema, TOKENS), judge=matches(schema))


# ---- calls


_NULL: Json = {"type": "null"}
_CITY: Json = {"city": {"enum": ["Oslo", "Rome"]}}
UNTYPED: tuple[Json, ...] = (
    {},
    {"properties": _CITY, "required": ["city"]},
    {"$schema": "https://json-schema.org/draft/2020-12/schema"},
    {"required": []},
    {"type": "string"},
    {"type": ["object", "null"], "properties": _CITY},
    {"anyOf": [{"type": "object", "properties": _CITY, "required": ["city"]}, _NULL]},
    {"$ref": "#/$defs/p", "$defs": {"p": {"type": "object", "properties": _CITY}}},
)


def _forced() -> Iterator[Input]:
    for parameters, make in itertools.product(UNTYPED, PARAMETER_FIELDS):
        yield Input(f"forced {parameters}", make(parameters, TOKENS), judge=_is_call)


# Written by models in the place of JSON.
SAID = (
    '{"name": "call", "arguments": {"city": "a\nb"}}',
    '{"name": "call", "arguments": {"city": NaN}}',
    '{"name": "call", "arguments": {"city": 1e999}}',
    '{"name": "call", "arguments": {"city": "\\ud800"}}',
    '{"name": "call", "arguments": ' + '{"a": ' * 70 + "1" + "}" * 70 + "}",
    '{"name": "", "arguments": {}}',
    '{"name": "call", "arguments": {"city": "Paris"',
)
_TOOLS = [{"type": "function", "function": {"name": "call", "parameters": {}}}]


def _calls_back() -> Iterator[Input]:
    """Whatever is given to a client as a call is taken back."""
    for text in SAID:
        said = f"<tool_call>\n{text}\n</tool_call>"
        request = chat("tools", TOKENS, tools=_TOOLS, structured_outputs={"choice": [said]})
        yield Input(f"said {text[:60]!r}", request, then=_chat_back)
    long = {"type": "object", "properties": {"text": {"type": "string", "minLength": 900}},
            "required": ["text"]}  # fmt: skip
    for tokens in (4, 8, 12, 20, 40):
        cut = chat_tool(long, tokens)
        yield Input(f"cut at {tokens}", cut, judge=_has_no_markup, then=_chat_back)
        yield Input(f"cut at {tokens}", cut, judge=_has_no_markup, then=_responses_back)
    stopped = chat("tools", TOKENS, tools=_TOOLS, tool_choice="required", stop=["a"])
    yield Input("a stop string in the markup", stopped, judge=_has_no_markup, then=_chat_back)


def _chat_back(answer: Json) -> Request:
    message = answer["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "done"}
        for call in message.get("tool_calls") or []
    ]
    said = {"role": "assistant", "content": message["content"] or ""}
    said |= {"tool_calls": message["tool_calls"]} if results else {}
    asked = {"role": "user", "content": PROMPT}
    return chat("messages", 4, messages=[asked, said, *results, asked])


def _responses_back(answer: Json) -> Request:
    calls = answer["choices"][0]["message"].get("tool_calls") or []
    items: list[Json] = [{"role": "user", "content": PROMPT}]
    for call in calls:
        called = {"type": "function_call", "call_id": call["id"], **call["function"]}
        items += [called, {"type": "function_call_output", "call_id": call["id"], "output": "done"}]
    body = {"model": "triolet-bundled", "input": items, "max_output_tokens": 4}
    return Request("input", RESPONSES, body)


# ---- names, costs, times


def _names() -> Iterator[Input]:
    """Properties whose names are keywords are properties."""
    names = (
        "default",
        "enum",
        "const",
        "examples",
        "patternProperties",
        "required",
        "$ref",
        "type",
    )
    parts: tuple[Json, ...] = (
        {"type": "string", "format": "zip", "maxLength": 5},
        {"type": "array", "items": {"type": "null"}, "maxItems": 2, "uniqueItems": False},
        {"type": "string", "pattern": "^\\d{3}$"},
    )
    for name, part in itertools.product(names, parts):
        schema = {"type": "object", "properties": {name: part}, "required": [name],
                  "additionalProperties": False}  # fmt: skip
        yield Input(f"{name}: {part}", chat_format(schema, TOKENS), judge=matches(schema))


def _costs() -> Iterator[Input]:
    """Forms that cost too much are refused at once."""
    yield _refused("a lexer that runs out", chat_format(
        {"type": "string", "pattern": "^(a{1,1000}){1,1000}$"}, TOKENS))  # fmt: skip
    for pattern in ("(?=a)b", "(a)\\1", "(" * 3000 + ")" * 3000):
        yield _refused(f"regex {pattern[:20]}", outputs("regex", pattern, TOKENS))
    deep: Json = {}
    for _ in range(300):
        deep = {"items": deep}
    yield _refused("a deep schema", chat_format(deep, TOKENS))
    wide = {"enum": [f"value {i}" for i in range(20_000)]}
    yield _refused("a wide schema", chat_format(wide, TOKENS))
    yield _refused("a schema of itself", chat_format({"$ref": "#"}, TOKENS))
    yield _refused("a multiple of a prime", chat_format(
        {"type": "integer", "multipleOf": 999983}, TOKENS))  # fmt: skip


_READERS: dict[str, Callable[[str], object]] = {
    "time": datetime.time.fromisoformat,
    "date-time": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "duration": pydantic.TypeAdapter(datetime.timedelta).validate_python,
}


def _times() -> Iterator[Input]:
    for form, read in _READERS.items():
        for make in (chat_format, responses_format):
            request = make({"type": "string", "format": form}, TOKENS)
            for seed in range(3):
                seeded = attrs.evolve(request, body={**request.body, **_seeded(request, seed)})
                yield Input(f"{form} {seed}", seeded, judge=_is_read(read))


def _seeded(request: Request, seed: int) -> Json:
    return {"runtime": {"seed": seed}} if request.path == RESPONSES else {"seed": seed}


def _is_read(read: Callable[[str], object]) -> Judge:
    def judge(answer: Json) -> str:
        text = text_of(answer)
        if text is None:
            return "is longer than any time"
        try:
            read(json.loads(text))
        except ValueError as error:
            return f"{text}: {error}"
        return ""

    return judge


# ---- fields


def _small() -> Iterator[Input]:
    yield Input("top_p 0", chat("top_p", 4, top_p=0))
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "call"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    yield Input("allowed_tools", chat("tool_choice", 40, tools=_TOOLS, tool_choice=choice),
                judge=_is_call)  # fmt: skip
    options = {"stream": True, "stream_options": {"include_usage": True}}
    yield Input("usage in a stream", chat("stream_options", 4, **options), judge=_has_usage)
    for temperature in (0, 1e-45, 2):
        yield Input(f"temperature {temperature}", chat("temperature", 4, temperature=temperature))
    empty: Json = {"role": "assistant", "content": None}
    for message in (empty, {**empty, "tool_calls": []}):
        messages = [{"role": "user", "content": PROMPT}, message]
        yield _refused(f"an assistant that says nothing: {message}",
                       chat("messages", 4, messages=messages))  # fmt: skip
    yield _refused("no messages", Request("messages", CHAT, {"messages": []}))
    unsupported = ("contains", "not", "if", "propertyNames", "unevaluatedProperties")
    for name in unsupported:
        schema = {"type": ["array", "object"], name: {"type": "null"}, "then": False}
        yield _refused(f"keyword {name}", chat_format(schema, TOKENS))
