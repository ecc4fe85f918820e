"""One choice of one request in the frontend: accepted tokens in, text out, credit and end back.

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
"""

import attrs

from ...engine.errors import (
    EngineDraining,
    EngineError,
    InvalidParameter,
    InvalidRequest,
    PromptTooLong,
)
from ...engine.messages import FinishReason, RequestOutput
from ..errors import PromptRefused, RequestFailed
from ..text.logprobs import Logprobs
from ..text.output_processor import OutputProcessor
from .admission import Ticket
from .core_client import CoreClient
from .output_collector import OutputCollector
from .stream_credit import StreamCredit


@attrs.define(eq=False)
class RequestFlow:
    """What `CoreClient` puts outputs into (a `RequestSink`), and what `GenerationStream` reads from
    and steers (a `ChoiceFlow`).
    """

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
        """Where the ledger writes."""
        return self.collector.token_ids

    # ---- from the engine

    def put_token(self) -> None:
        """One token more was written down; it becomes text when it is taken."""
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
            self.ticket.release_tokens()
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

    def fail(self, error: Exception) -> None:
        """The request ended with this error."""
        self.ticket.release_tokens()
        self.collector.fail(error)

    # ---- from the reader

    def handle_consumed(self, token_count: int) -> float:
        """So many output tokens were taken in all: the engine may go further.

        Returns from how many on this is to be called again.
        """
        self._grant(self.credit.handle_consumed(token_count))
        return self.credit.grants_at

    def handle_granted(self, tokens: int) -> None:
        """The client allows so many tokens more."""
        self._grant(self.credit.handle_granted(tokens))

    def end(self, reason: FinishReason) -> None:
        """End it here and now, and at its engine; what has come before stays."""
        self.client.abort(self)
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
