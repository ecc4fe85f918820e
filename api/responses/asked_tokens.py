"""Tokens of a response beside its text: ids and logprobs that the request asked for.

Sans-IO. A record's deltas are texts; which tokens each of them covers is counted here, as calls
have tokens that no delta shows.
"""

from array import array

import attrs

from ...runtime.text.outputs import GenerationOutput, Logprobs
from ..openai.logprobs import Entry
from ..openai.response_events import Delta, ResponseEvents
from ..schema.fields import JsonObject

# Size of one number in an array that has room to grow, and of the arrays of logprobs when empty.
NUMBER_BYTES, LOGPROBS_BYTES = 5, 512


@attrs.define(eq=False)
class AskedTokens:
    """Output tokens of one response, as far as its request wants more of them than their text."""

    events: ResponseEvents
    # Deltas show their tokens: the request asked for ids or logprobs. Then none is silent.
    are_shown: bool = attrs.field(init=False)
    # Output tokens, where the request or the conversation's next turn wants them; else None.
    ids: "array[int] | None" = attrs.field(init=False)
    logprobs: Logprobs | None = attrs.field(default=None, init=False)
    # Count of output tokens at each delta, with tools; without, each delta is one.
    ends: "array[int] | None" = attrs.field(init=False)
    # How many are reasoning, where that is parted off; at the end.
    reasoning: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        request = self.events.request
        self.are_shown = request.token_ids or request.sampling.logprobs is not None
        self.ids = array("I") if request.keeps_token_ids else None
        self.ends = array("I") if request.is_parsed and self.are_shown else None

    @property
    def size_bytes(self) -> int:
        """About what they take."""
        size = NUMBER_BYTES * (len(self.ids or ()) + len(self.ends or ()))
        return size + (0 if self.logprobs is None else LOGPROBS_BYTES + self.logprobs.size_bytes)

    def append(self, output: GenerationOutput) -> None:
        """Keep the next tokens."""
        if self.ids is not None:
            self.ids.extend(output.token_ids)
        if output.logprobs is None:
            return
        if self.logprobs is None:
            self.logprobs = output.logprobs.between(0, len(output.logprobs))
        else:
            self.logprobs.extend(output.logprobs)

    def before(self, delta: int, count: int) -> int:
        """How many of `count` tokens the deltas before this one cover."""
        if self.ends is None:
            return min(delta, count)
        return self.ends[delta - 1] if delta else 0

    def left(self, deltas: int, count: int) -> int:
        """How many of `count` tokens no delta covers, where tokens were asked for: with tools."""
        return 0 if self.ends is None else count - self.before(deltas, count)

    def tell(self, delta: Delta, first: int, stop: int) -> None:
        """Have a delta tell its tokens `[first, stop)`."""
        if self.ids is not None and self.events.request.token_ids:
            delta.token_ids, delta.token_index = list(self.ids[first:stop]), first
        if self.events.formatter is not None:
            delta.logprobs = self.entries(first, stop)

    def last(self, first: int, stop: int) -> JsonObject:
        """Tokens behind the last delta, which calls may have; the terminal event has them."""
        found = JsonObject()
        if first == stop:
            return found
        if self.ids is not None and self.events.request.token_ids:
            found |= {"token_ids": list(self.ids[first:stop]), "token_index": first}
        if self.events.formatter is not None:
            found["logprobs"] = self.entries(first, stop)
        return found

    def entries(self, first: int, stop: int) -> list[Entry]:
        """Logprobs of the tokens `[first, stop)`, if they were asked for."""
        if self.logprobs is None:
            return []
        return self.events.format_logprobs(self.logprobs.between(first, stop))
