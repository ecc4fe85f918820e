"""Requests of the kill campaign, a pure function of their numbers.

All are sampled with seeds and ask for logprobs; some have penalties, some stop strings. Of every
eight one must be JSON of a schema, one must call a function, one (in chat) has two choices, and one
has characters that are several tokens each.
"""

from typing import Any

MODEL = "triolet-bundled"
EIGHTH = 8
SCHEMA_AT, TOOLS_AT, CHOICES_AT, UTF8_AT = 0, 1, 2, 3
ANIMALS = ("fox", "bear", "hedgehog", "swan", "owl", "cat", "goat", "rabbit")
# So long that an answer of a given form is as long as the others.
LETTERS_MIN = 900
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"story": {"type": "string", "minLength": LETTERS_MIN}},
    "required": ["story"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "tell", "description": "Tells a story.", "parameters": SCHEMA}
# The model's vocabulary has their bytes alone.
UTF8 = {"regex": "(🦊|☃|ü|語|é){300,}"}
# One that is common in the model's stories, so that text is held back, and one that hardly comes.
STOPS = (" and then he never", "\n\n\n")
# A chat that is read on says so; its events have ids then.
KEEP_S = 30.0
SAMPLING: dict[str, Any] = {"temperature": 0.8}
PENALTIES: tuple[dict[str, float], ...] = (
    {},
    {"frequency_penalty": 0.4},
    {"presence_penalty": 0.5},
    {"repetition_penalty": 1.1},
)


def lane_event(number: int, tokens: int) -> dict[str, Any]:
    """A `response.create` for a lane of a socket."""
    form = number % EIGHTH
    runtime = {"seed": number, "token_ids": True, **_ours(number)}
    event: dict[str, Any] = {
        "type": "response.create",
        "model": MODEL,
        "input": _prompt(number),
        "max_output_tokens": tokens,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "runtime": runtime,
        **SAMPLING,
    }
    if form == SCHEMA_AT:
        shape = {"type": "json_schema", "name": "story", "schema": SCHEMA, "strict": True}
        event["text"] = {"format": shape}
    elif form == TOOLS_AT:
        event["tools"] = [{"type": "function", "strict": True, **FUNCTION}]
        event["tool_choice"] = "required"
    return event


def response_body(number: int, tokens: int) -> dict[str, Any]:
    """The same for `responses.create`; what OpenAI's body lacks is in `extra_body`."""
    body = lane_event(number, tokens)
    del body["type"]
    return {"extra_body": {"runtime": body.pop("runtime")}, **body, "stream": True}


def chat_body(number: int, tokens: int) -> dict[str, Any]:
    """Arguments of `chat.completions.create`; what OpenAI's body lacks is in `extra_body`."""
    form = number % EIGHTH
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": _prompt(number)}],
        "max_completion_tokens": tokens,
        "seed": number,
        "logprobs": True,
        "top_logprobs": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
        "extra_body": {"runtime": {"token_ids": True, "keep_s": KEEP_S}, **_ours(number)},
        **SAMPLING,
    }
    if form == SCHEMA_AT:
        shape = {"name": "story", "schema": SCHEMA, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": shape}
    elif form == TOOLS_AT:
        body["tools"] = [{"type": "function", "function": FUNCTION}]
        body["tool_choice"] = "required"
    elif form == CHOICES_AT:
        body["n"] = 2
    return body


def choices_of(body: dict[str, Any]) -> int:
    """How many requests this is to an engine."""
    return int(body.get("n", 1))


def _prompt(number: int) -> str:
    return f"Tell me story {number} about a {ANIMALS[number % len(ANIMALS)]}."


def _ours(number: int) -> dict[str, Any]:
    """Sampling that every protocol of ours takes, in its own place."""
    form = number % EIGHTH
    if form in (SCHEMA_AT, TOOLS_AT, UTF8_AT):
        return {"structured_outputs": UTF8} if form == UTF8_AT else {}
    stops = {"stop": list(STOPS)} if number % 3 == 0 else {}
    return {"ignore_eos": True, **PENALTIES[number % len(PENALTIES)], **stops}
