"""A request's choice in the frontend: accepted tokens in, text out, credit and end back.

Two halves meet in the `OutputCollector`, and no task stands between them:

    pushed, for every token:   output_handler -> CoreClient.deliver_tokens -> RequestFlow.put_token
                               -> OutputCollector.put_tokens [-> OutputListener.on_output]
    pulled, by the reader:     GenerationStream.take_nowait -> OutputCollector.take_nowait
                               -> OutputProcessor.handle_tokens -> detokenizer
    back, after a pull:        GenerationStream -> RequestFlow.handle_consumed -> StreamCredit
                               -> CoreClient.grant

What is pushed is a count: the tokens stand in the ledger's list. A first token, an end, events,
logprobs, and all tokens of a request with stop strings go through `RequestFlow.put` and become text
at once.

How far a stream may be generated has two limits (`StreamCredit`). The *window* follows the reader
by itself, so that a slow one pauses its request instead of filling memory; a client that asks for
credit of its own grants tokens on top of that. Both are absolute output indices (exclusive), as
credit is everywhere.
"""

import math

import attrs

from ...engine.errors import (
    EngineDraining,
    EngineError,
    InvalidParameter,
    InvalidRequest,
    PromptTooLong,
)
from ...engine.messages import FinishReason, RequestOutput
from ...engine.sampling_params import TOKENS_MAX
from ..errors import PromptRefused, RequestFailed
from ..text.detokenizer import OutputProcessor
from ..text.outputs import Logprobs
from .admission import Ticket
from .core_client import CoreClient
from .output_collector import OutputCollector


@attrs.define(eq=False)
class CreditWindow:
    """The consumer's side of one stream.

    A new grant is worth a message only when it moves credit by at least half a window; a producer
    that has used all its credit always gets one, since then the whole window is free.
    """

    window: int = attrs.field(validator=attrs.validators.ge(1))
    # Items consumed when the stream begins here: 0, or where a resumed stream goes on.
    consumed: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    # The last grant; the producer may have an older one, never a higher one.
    credit: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.credit = self.consumed + self.window

    @property
    def grants_at(self) -> int:
        """Consumption below this index brings no grant, so it need not be reported."""
        return self.credit - self.window + max(1, self.window // 2)

    def handle_consumed(self, index: int) -> int | None:
        """Note that all items below `index` are consumed. Returns the new credit to send, or None.

        An index that is not new (a repeat, an overtaken report) changes nothing.
        """
        self.consumed = max(self.consumed, index)
        target = self.consumed + self.window
        if target - self.credit < max(1, self.window // 2):
            return None
        self.credit = target
        return target

    def check_invariants(self) -> None:
        """Assert that the producer is never stuck, never further ahead than the window."""
        assert self.credit <= self.consumed + self.window
        assert self.credit > self.consumed + self.window - max(1, self.window // 2)


@attrs.define(eq=False)
class StreamCredit:
    """Credit of one request: the lower of its window and its client's grants; None is no limit."""

    window: CreditWindow | None
    # Tokens that the client has granted so far.
    granted: int | None = None

    # The last credit that was sent; the first goes with the ADD. None: to the end.
    credit: int | None = attrs.field(init=False)
    # `handle_consumed` does nothing below this index.
    grants_at: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.credit = self._allowed()
        self.grants_at = math.inf if self.window is None else self.window.grants_at

    def handle_consumed(self, index: int) -> int | None:
        """Note that all tokens below `index` were taken; returns the new credit to send, if any."""
        if self.window is None or self.window.handle_consumed(index) is None:
            return None
        self.grants_at = self.window.grants_at
        return self._update()

    def handle_granted(self, tokens: int) -> int | None:
        """The client allows `tokens` more (not negative). Returns the new credit to send, or None.

        A client without a limit of its own has nothing to grant.
        """
        assert tokens >= 0
        if self.granted is None:
            return None
        self.granted = min(self.granted + tokens, TOKENS_MAX)
        return self._update()

    def check_invariants(self) -> None:
        """Assert that what was sent is what the limits allow."""
        assert self.credit == self._allowed()
        assert self.grants_at == (math.inf if self.window is None else self.window.grants_at)

    def _allowed(self) -> int | None:
        """The lower limit; None if there is none."""
        window = None if self.window is None else self.window.credit
        if window is None or self.granted is None:
            return self.granted if window is None else window
        return min(window, self.granted)

    def _update(self) -> int | None:
        """Take over what is allowed now; returns it if it has changed."""
        credit, self.credit = self.credit, self._allowed()
        return self.credit if self.credit != credit else None


@attrs.define(eq=False)
class RequestFlow:
    """Flow of a choice: the `RequestSink` of `CoreClient`, and the `ChoiceFlow` of
    `GenerationStream`."""

    client: CoreClient
    processor: OutputProcessor
    collector: OutputCollector
    ticket: Ticket
    credit: StreamCredit

    # The next token needs no look: it is not the first, and completes no stop string.
    _is_plain: bool = attrs.field(default=False, init=False)

    @property
    def request_id(self) -> str:
        """The request's name."""
        return self.collector.request_id

    @property
    def token_ids(self) -> list[int]:
        """List that the ledger writes to."""
        return self.collector.token_ids

    # ---- from the engine

    def put_token(self) -> None:
        """Put a token that was written down; it becomes text when it is taken."""
        if self._is_plain:
            self.collector.put_tokens()
            return
        index = self.processor.token_count
        self.put(self._output(index, self.token_ids[index : index + 1]))

    def put(self, output: RequestOutput) -> None:
        """Turn tokens into text; an error of the engine's fails the request alone."""
        collector = self.collector
        if self._is_plain and _is_plain(output):
            collector.put_tokens(len(output.token_ids))
            return
        if collector.finished:
            return
        if output.token_ids:
            self.ticket.handle_first_token()
            self._is_plain = not self.processor.searches
        if output.finish_reason is FinishReason.ERROR:
            if output.token_ids:  # they came before it
                self.put(attrs.evolve(output, finish_reason=None))
            collector.fail(error_of(self.request_id, output))
            return
        if output.first_index == 0:  # a replay that begins later found other blocks
            collector.cached_tokens = max(collector.cached_tokens, output.cached_tokens)
        if output.prompt_logprobs is not None:
            collector.prompt_logprobs = Logprobs.of(output.prompt_logprobs)
        collector.settle()
        collector.put(self.processor.handle_output(output))
        if self.processor.stopped_here:
            self.client.stop(self)

    def adopt_tokens(self) -> None:
        """The list has tokens of a life before, of which no more is to be said than their text."""
        if self.token_ids:
            self.ticket.release_tokens()
            self._is_plain = True
            self.collector.put_tokens(len(self.token_ids))

    def fail(self, error: Exception) -> None:
        """The request ended with this error."""
        self.ticket.release_tokens()
        self.collector.fail(error)

    # ---- from the reader

    def handle_consumed(self, token_count: int) -> float:
        """Let the engine go further, as so many tokens were taken in all; returns the count at
        which to call again."""
        self._grant(self.credit.handle_consumed(token_count))
        return self.credit.grants_at

    @property
    def client_credit(self) -> int | None:
        return self.credit.granted

    def handle_granted(self, tokens: int) -> None:
        """The client allows so many tokens more."""
        self._grant(self.credit.handle_granted(tokens))
        if self.credit.granted is not None:
            self.client.note_granted(self, self.credit.granted)

    def end(self, reason: FinishReason) -> None:
        """End it here and now, and at its engine; what has come before stays."""
        self.client.abort(self, reason)
        self.ticket.release_tokens()
        self.put(self._output(self.processor.token_count, [], reason))

    def close(self) -> None:
        """The reader has gone: end what has not ended, at its engine too."""
        self.client.abort(self)

    def _grant(self, credit: int | None) -> None:
        if credit is not None:
            self.client.grant(self, credit)

    def _output(
        self, index: int, token_ids: list[int], reason: FinishReason | None = None
    ) -> RequestOutput:
        return RequestOutput(
            request_id=self.request_id,
            attempt=0,  # whichever: the ledger has judged it
            first_index=index,
            token_ids=token_ids,
            finish_reason=reason,
        )


def _is_plain(output: RequestOutput) -> bool:
    """Whether it says no more than which tokens are next."""
    return bool(
        output.token_ids
        and output.finish_reason is None
        and output.logprobs is None
        and not (output.events or output.cached_tokens)
    )


def error_of(request_id: str, output: RequestOutput) -> EngineError:
    """Whose fault it is that an engine ended this request with an error, in the engine's words."""
    match output.error_code:
        case EngineDraining.code:
            return EngineDraining()
        case InvalidParameter.code:  # its sentence begins with the parameter's name
            parameter, _, reason = output.error.partition(" ")
            return InvalidParameter(parameter, reason)
        case PromptTooLong.code:
            return PromptRefused(output.error)
        case InvalidRequest.code:
            return InvalidRequest(output.error)
        case _:
            return RequestFailed(request_id, output.error)
