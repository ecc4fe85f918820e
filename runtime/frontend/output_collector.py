"""Output collector: where a request's outputs wait until its one reader takes them, merged.

Nothing is moved on the way of a token. The ledger writes it down (`LedgerEntry.token_ids`), the
collector counts it, and only the reader, when it comes, makes text of what lies between its index
and the count. `request_flow` shows the whole way.

Putting never waits and never fails. A slow reader finds everything that came meanwhile merged into
one output, so that a stalled client costs one collector and no queue; the request's credit bounds
its tokens (without credit: the model's length). Events split what is merged, so that they stay
where they were among the tokens.

It is on the path of every token, so: a reader that is a task sleeps in a `ParkingPlace`, as an
event for each wake-up costs more than all else in here together; one that need not wait in a task
is an `OutputListener`. Then a token costs no switch of tasks at all, and while earlier ones were
not taken it costs no call either.
"""

from collections.abc import Generator, Sequence
from types import coroutine
from typing import Any, Protocol

import attrs
import trio

from ...nurseries.tasks.parking import ParkingPlace
from ..errors import ProcessingFailed
from ..text.outputs import GenerationOutput, Logprobs, join


class OutputListener(Protocol):
    """A reader that is called when there is something to take."""

    def on_output(self, is_end: bool) -> None:
        """There is something to take; with `is_end` the end, or a failure, has come.

        Not called for what is put while something waits already, but for an end. Runs in the task
        that delivers to all requests, so it must not raise: it takes, or remembers.
        """


class TextDecoder(Protocol):
    """Makes text of tokens: `OutputProcessor`, or a test's."""

    def handle_tokens(self, token_ids: list[int]) -> list[str]:
        """The text of each of the next tokens, which have no end and complete no stop string."""


@attrs.define(eq=False)
class OutputSource:
    """The reader's side: one task takes, or one listener is called."""

    # `take_nowait` may find something: tokens, an end, the close.
    is_ready: bool = attrs.field(default=False, init=False)
    _sleeper: ParkingPlace = attrs.field(factory=ParkingPlace, init=False)
    _listener: OutputListener | None = attrs.field(default=None, init=False)

    def listen(self, listener: OutputListener) -> None:
        """Call this reader from now on; what is here already it is not called for."""
        self._listener = listener

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
                (yield self._sleeper.order()).unwrap()
            output = self.take_nowait()
            if output is not None:
                return output

    def take_nowait(self) -> GenerationOutput | None:
        """Take an output that is there, or None while none is."""
        raise NotImplementedError

    def _wake(self, is_end: bool) -> None:
        self.is_ready = True
        if self._listener is None:
            self._sleeper.wake()
        else:
            self._listener.on_output(is_end)


@attrs.define(eq=False)
class OutputCollector(OutputSource):
    """Outputs of one choice of one request.

    With `only_when_finished` the reader is woken by the last output alone, for those who want the
    whole answer: the loop is then not bothered for each token.
    """

    request_id: str
    # Makes text of plain tokens when they are taken.
    decoder: TextDecoder
    only_when_finished: bool = False
    # The output tokens, in the ledger's own list; what is put must be in it already.
    token_ids: list[int] = attrs.field(factory=list)

    # Facts that came with the first token: how much of the prompt was cached, and its logprobs.
    cached_tokens: int = attrs.field(default=0, init=False)
    prompt_logprobs: Logprobs | None = attrs.field(default=None, init=False)
    # An end or an error was put, or the reader has gone: what is put now goes nowhere.
    finished: bool = attrs.field(default=False, init=False)
    # Outputs that are not taken yet, oldest first; merged when taken.
    _waiting: list[GenerationOutput] = attrs.field(factory=list, init=False)
    # Tokens below the first index are in outputs; those up to the second were put one by one. Later
    # ones in the list were written down and not put yet.
    _settled: int = attrs.field(init=False)
    _put: int = attrs.field(init=False)
    # Raised to the reader once everything before it was taken.
    _error: Exception | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._settled = self._put = len(self.token_ids)

    # ---- the writer's side

    def put_tokens(self, count: int = 1) -> None:
        """Put so many more of `token_ids`, with nothing to say but their text."""
        if self.finished:
            return
        self._put += count
        if not (self.is_ready or self.only_when_finished):
            self._wake(False)

    def settle(self) -> None:
        """Make an output of the tokens so far, before anybody else decodes the next ones."""
        if self._put > self._settled:
            self._waiting.append(self._decode())

    def put(self, output: GenerationOutput) -> None:
        """Add new tokens, events or an end. Ignored after `close`, `fail` or an end."""
        if self.finished:
            return
        self.settle()
        self._waiting.append(output)
        self._settled = self._put = output.token_count
        if output.finish_reason is not None:
            self.finished = True
        if self.finished or not (self.is_ready or self.only_when_finished):
            self._wake(self.finished)

    def fail(self, error: Exception) -> None:
        """End with an error: raised to the reader after what was put before. The first stays."""
        if self.finished:
            return
        self._error = error
        self.finished = True
        self._wake(True)

    # ---- the reader's side

    def close(self) -> None:
        """The reader has gone: drop what is here and whatever still comes."""
        self._error = trio.ClosedResourceError("the stream's block was left")
        self.finished = True
        self._waiting.clear()
        self._settled = self._put
        self._listener = None
        self._wake(True)

    @property
    def tokens_waiting(self) -> int:
        """How many tokens the reader has not taken yet."""
        return sum(len(output.token_ids) for output in self._waiting) + self._put - self._settled

    def take_nowait(self) -> GenerationOutput | None:
        """Take all outputs up to the next event, merged; None when there is none yet.

        Raises what `fail` was given, once everything before it was taken; `ClosedResourceError`
        after `close`.
        """
        if not self.is_ready:
            return None
        if self._waiting:
            output = self._take_merged()
        elif self._put > self._settled:
            output = self._decode()
        else:
            assert self._error is not None
            raise self._error
        if not (self._waiting or self.finished or self._put > self._settled):
            self.is_ready = False
        return output

    def _decode(self) -> GenerationOutput:
        token_ids = self.token_ids[self._settled : self._put]
        self._settled = self._put
        try:
            texts = self.decoder.handle_tokens(token_ids)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ProcessingFailed(self.request_id, reason) from error
        if len(texts) == 1:
            return GenerationOutput(texts[0], token_ids, self._put)
        return GenerationOutput("".join(texts), token_ids, self._put, texts=texts)

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

    def check_invariants(self) -> None:
        """Assert that what can be taken is announced, and no reader sleeps on it."""
        waits = bool(self._waiting) or self._put > self._settled
        assert self._settled <= self._put <= len(self.token_ids)
        assert self.finished or self._error is None
        assert self.is_ready == (self.finished or (waits and not self.only_when_finished))
        assert not (self.is_ready and self._sleeper.is_taken)


@attrs.define(eq=False)
class ChoicesCollector(OutputSource):
    """Outputs of several choices, `collectors[i]` of choice i, for one reader.

    Choices are taken from in the order in which they had something to say, each as a whole, so that
    none waits for more than the others' one output.
    """

    collectors: Sequence[OutputCollector]

    # Choices that may have something to take, whose turn it is first; each once.
    _turns: dict[int, None] = attrs.field(factory=dict, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        for index, collector in enumerate(self.collectors):
            collector.listen(_ChoiceListener(self, index))

    @property
    def finished(self) -> bool:
        """The end of every choice, or a failure, was put."""
        return all(collector.finished for collector in self.collectors)

    @property
    def tokens_waiting(self) -> int:
        """How many tokens the reader has not taken yet."""
        return sum(collector.tokens_waiting for collector in self.collectors)

    def close(self) -> None:
        """The reader has gone: drop what is here and whatever still comes."""
        self._is_closed, self._listener = True, None
        for collector in self.collectors:
            collector.close()
        self._wake(True)

    def take_nowait(self) -> GenerationOutput | None:
        """Take the outputs of one choice, merged up to its next event; None when there is none yet.

        Raises what `OutputCollector.take_nowait` does, of any choice.
        """
        if self._is_closed:
            raise trio.ClosedResourceError("the stream's block was left")
        while self._turns:
            index = next(iter(self._turns))
            del self._turns[index]
            output = self.collectors[index].take_nowait()
            if output is None:
                continue
            output.index = index
            if output.finish_reason is None:
                self._turns[index] = None  # there may be more, which is not announced again
            return output
        self.is_ready = False
        return None

    def handle_ready(self, index: int, is_end: bool) -> None:
        """There is something to take from this choice."""
        self._turns[index] = None
        self._wake(is_end and self.finished)


@attrs.frozen
class _ChoiceListener:
    choices: ChoicesCollector
    index: int

    def on_output(self, is_end: bool) -> None:
        self.choices.handle_ready(self.index, is_end)


def merge(outputs: list[GenerationOutput]) -> GenerationOutput:
    """Merge outputs, at least one, into one that says the same."""
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
