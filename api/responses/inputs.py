"""Input of a response before the model is given it: item references, and what is too long.

An input may name items of kept responses instead of repeating them. The id of an item has that of
its response in it, on whatever frontend that is.

Of a conversation that is too long for the model the oldest turns are dropped, if that is asked for.
A turn begins with a user's message, so that no answer, call or result stands without what it
belongs to. System messages stay, and so does the last turn: if that alone is too long, the request
is refused as any other.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from ...runtime.frontend.generation import Generator
from ...runtime.messages import ForeignVerb
from ...runtime.text.prompts import ChatPrompt
from ..errors import ApiError, bad_field
from ..openai.fields.responses_fields import is_reference
from ..schema.fields import JsonObject

ITEM_ID = re.compile(r"(?:msg|fc|ctc)_(?:[0-9]+_)?([0-9a-f]{34})(?:_[0-9]+)?", re.ASCII)
# Responses that one input may name; each is asked for, perhaps in another process.
RESPONSES_MAX = 64
Ask = Callable[[ForeignVerb, str, str], Awaitable[JsonObject]]


async def with_items(values: JsonObject, principal: str, ask: Ask) -> JsonObject:
    """This body with items in the place of references to them.

    Raises `ApiError` 404 for an item that is not kept (for this principal), and what `ask` raises.
    """
    given, found = values["input"], dict[str, JsonObject]()
    assert isinstance(given, list), "it has been read"
    named = [str(item["id"]) for item in given if is_reference(item)]
    ids = {match[1] for match in map(ITEM_ID.fullmatch, named) if match is not None}
    if len(ids) > RESPONSES_MAX:
        raise bad_field("input", f"must refer to at most {RESPONSES_MAX} responses")
    for response in sorted(ids):
        try:
            kept = await ask(ForeignVerb.GET, f"resp_{response}", principal)
        except ApiError as error:
            if error.status != 404:
                raise
            continue
        output = kept["output"]
        assert isinstance(output, list)
        found |= {item["id"]: item for item in output}
    for item_id in named:
        if item_id not in found:
            message = f"Item with id {item_id[:100]!r} not found in the responses that are kept"
            raise ApiError(404, message, "item_not_found", param="input")
    items = [found[str(item["id"])] if is_reference(item) else item for item in given]
    return {**values, "input": items}


# Share of the model's length, if the request gives its answer no length, or a longer one.
ANSWER_SHARE = 0.25


async def fitting(
    prompt: ChatPrompt, generator: Generator, max_tokens: int | None, *, principal: str
) -> ChatPrompt:
    """The prompt with as many of its last turns as leave room for an answer.

    Raises what tokenizing raises. The number of turns is searched for by halves, so a conversation
    of 8192 messages is rendered 14 times at most, and one that fits once.
    """
    length = generator.max_model_len

    async def count(dropped: int) -> int:
        kept = _without_turns(prompt, dropped)
        return len(await generator.tokenize(kept, add_special_tokens=False, principal=principal))

    if await count(0) < length:
        return prompt
    share = int(length * ANSWER_SHARE)
    room = length - min(share if max_tokens is None else max_tokens, share)
    least, most = 1, max(0, sum(map(_is_user, prompt.messages)) - 1)
    while least < most:
        middle = (least + most) // 2
        if await count(middle) < room:
            most = middle
        else:
            least = middle + 1
    return _without_turns(prompt, most)


def _is_user(message: dict[str, Any]) -> bool:
    return bool(message["role"] == "user")


def _without_turns(prompt: ChatPrompt, dropped: int) -> ChatPrompt:
    """Drop the first turns, and what comes before the first of those that stay."""
    if not dropped:
        return prompt
    begins = [place for place, message in enumerate(prompt.messages) if _is_user(message)]
    first = begins[dropped]
    kept = [
        message
        for place, message in enumerate(prompt.messages)
        if place >= first or message["role"] == "system"
    ]
    return attrs.evolve(prompt, messages=kept)
