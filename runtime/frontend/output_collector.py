"""The one place where a request's finished outputs wait for their one consumer.

Putting never waits and never fails. A slow consumer finds everything that came meanwhile merged
into one output, so that a stalled client costs one slot and no queue. The bound on the
tokens in it is the request's credit (without credit: the model's length). A put carries at least
one token, an event or an end; events between two tokens are few, as a request at its credit has
none. They split what is merged, so that they stay where they were among the tokens. Must not know
engines, credit or the wire.

It is on the path of every token, so: single tokens are only gathered, and become text and an output
together when they are taken; and its consumer sleeps in a `ParkingPlace`, as an event for each
wake-up costs more than all else in here together. A consumer that need not wait in a task is called
instead (`follow`): then a token costs no switch of tasks at all, and while earlier ones were not
taken it costs no call either.
"""

from collections.abc import Callable, Generator
from types import coroutine
from typing import Any

import attrs
import trio

from ...nurseries.tasks.parking import ParkingPlace
from ..text.logprobs import join
from ..text.outputs import GenerationOutput


def _no_texts(token_ids: list[int]) -> list[str]:
    return [""] * len(token_ids)


@attrs.define(eq=False)
class Outlet:
    """What one task takes outputs from, or somebody who is called instead."""

    # `take_nowait` may have something to say: what waits, an end, the close.
    is_ready: bool = attrs.field(default=False, init=False)
    _consumer: ParkingPlace = attrs.field(factory=ParkingPlace, init=False)
    # Called once there is something to take: wakes the consumer, or is what follows. It is told
    # whether the end, or a failure, has come.
    _on_ready: Callable[[bool], None] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._on_ready = self._consumer.wake

    def follow(self, on_ready: Callable[[bool], None]) -> None:
        """Have `on_ready` called for what is put or fails from now on: it takes, or remembers.

        It is told whether the end, or a failure, has come.
        What is put while something waits is not told, but for the end and a failure. It runs in the
        task that puts, which serves all requests: it must not raise.
        """
        self._on_ready = on_ready

    @coroutine
    def take(self) -> Generator[object, Any, GenerationOutput]:
        """Wait until there is something and take it: for `await`, not for a task of its own.

        Raises what `take_nowait` does, and `BusyResourceError` when another task waits. A
        checkpoint in every case. Cancellation loses nothing.
        """
        while True:
            if self.is_ready:
                yield from trio.lowlevel.checkpoint().__await__()  # noqa: ASYNC105
            else:
                (yield self._consumer.order()).unwrap()
            output = self.take_nowait()
            if output is not None:
                return output

    def take_nowait(self) -> GenerationOutput | None:
        """What is there, or None while nothing is."""
        raise NotImplementedError


@attrs.define(eq=False)
class MergedSlot(Outlet):
    """Merges outputs of one request, of one choice; one task takes.

    With `only_when_finished` the consumer is woken by the last output alone, for those who want
    the whole answer: the loop is then not bothered for each token.
    """

    only_when_finished: bool = False
    # The text of each of the next single tokens; what it raises, the consumer gets. Called in
    # their order.
    texts_of: Callable[[list[int]], list[str]] = _no_texts

    # Not yet taken, oldest first. Merged when taken.
    _waiting: list[GenerationOutput] = attrs.field(factory=list, init=False)
    # Single tokens after those; and how many output tokens there are without them.
    _token_ids: list[int] = attrs.field(factory=list, init=False)
    _token_count: int = attrs.field(default=0, init=False)
    # Raised to the consumer once `_waiting` is empty. The first one stays.
    _error: Exception | None = attrs.field(default=None, init=False)
    # An end or an error was put: the consumer needs not wait any longer.
    finished: bool = attrs.field(default=False, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    # It was closed or has failed: what is put goes nowhere.
    _deaf: bool = attrs.field(default=False, init=False)

    def put_token(self, token_id: int) -> None:
        """As `put` of an output that has this token, its text, and no more."""
        if self._deaf:
            return
        self._token_ids.append(token_id)
        if not (self.is_ready or self.only_when_finished):
            self.is_ready = True
            self._on_ready(False)

    def put_tokens(self, token_ids: list[int]) -> None:
        """As `put_token` of each, in order; at least one."""
        if self._deaf:
            return
        self._token_ids += token_ids
        if not (self.is_ready or self.only_when_finished):
            self._wake()

    def settle(self) -> None:
        """Make the single tokens so far an output, for whoever turns the next ones to text."""
        if self._token_ids:
            self._waiting.append(self._tokens_taken())

    def put(self, output: GenerationOutput) -> None:
        """Add new tokens or an end, and wake the consumer. Ignored after `close` or `fail`."""
        if self._deaf:
            return
        self.settle()
        self._waiting.append(output)
        self._token_count = output.token_count
        if output.finish_reason is not None:
            self.finished = True
        if self.finished or not (self.is_ready or self.only_when_finished):
            self._wake()

    def fail(self, error: Exception) -> None:
        """End with an error: raised to the consumer after what was put before. The first stays."""
        if self._deaf:
            return
        self._error = error
        self.finished = self._deaf = True
        self._wake()

    def close(self) -> None:
        """The consumer has gone: drop what is here and whatever still comes."""
        self._closed = self._deaf = True
        self._waiting.clear()
        self._token_ids.clear()
        self._on_ready = self._consumer.wake
        self.texts_of = _no_texts  # whose it was may have this slot: a circle
        self._wake()

    @property
    def tokens_waiting(self) -> int:
        """How many tokens the consumer has not taken yet."""
        return sum(len(output.token_ids) for output in self._waiting) + len(self._token_ids)

    def take_nowait(self) -> GenerationOutput | None:
        """All that is there up to the next event, merged; None when there is nothing yet.

        Raises what `fail` was given, once everything before it was taken; `ClosedResourceError`
        after `close`.
        """
        if not self.is_ready:
            return None
        if self._waiting:
            output = self._take_merged()
        elif self._token_ids:
            output = self._tokens_taken()
        elif self._closed:
            raise trio.ClosedResourceError("the stream's block was left")
        else:
            assert self._error is not None
            raise self._error
        if not (self._waiting or self._token_ids or self.finished):
            self.is_ready = False
        return output

    def _tokens_taken(self) -> GenerationOutput:
        token_ids, self._token_ids = self._token_ids, []
        self._token_count += len(token_ids)
        texts = self.texts_of(token_ids)
        if len(texts) == 1:
            return GenerationOutput(texts[0], token_ids, self._token_count)
        return GenerationOutput("".join(texts), token_ids, self._token_count, texts=texts)

    def _take_merged(self) -> GenerationOutput:
        self.settle()
        if len(self._waiting) == 1:
            return self._waiting.pop()
        outputs, self._waiting = self._waiting, []
        has_tokens = False
        for place, output in enumerate(outputs):
            # Events come before their output's tokens: they are not moved before earlier ones.
            if output.events and has_tokens:
                outputs, self._waiting = outputs[:place], outputs[place:]
                break
            has_tokens = has_tokens or bool(output.token_ids)
        return merge(outputs)

    def _wake(self) -> None:
        self.is_ready = True
        self._on_ready(self.finished)

    def check_invariants(self) -> None:
        """What is there to say is said, and nobody waits for it."""
        waits = bool(self._waiting or self._token_ids)
        assert self._deaf == (self._closed or self._error is not None)
        assert self.is_ready == (
            self._closed or self.finished or (waits and not self.only_when_finished)
        )
        assert not (self.is_ready and self._consumer.is_taken)


def merge(outputs: list[GenerationOutput]) -> GenerationOutput:
    """One output that says what these say one after the other; at least one."""
    last = outputs[-1]
    return GenerationOutput(
        text="".join([output.text for output in outputs]),
        token_ids=[token_id for output in outputs for token_id in output.token_ids],
        token_count=last.token_count,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        events=tuple([event for output in outputs for event in output.events]),
        logprobs=join([output.logprobs for output in outputs]),
        texts=[text for output in outputs for text in output.parts],
    )
