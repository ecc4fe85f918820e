"""Output processor of one choice: tokens to text, and the end where a stop string is complete.

Stop rules on tokens are the engine's; stop strings are found here, because only here is text. A
match ends the request in this process; `request_flow` then ends it at its engine (`stopped_here`).
Token ids up to and including the one that completed the stop string belong to the answer, later
ones that were computed meanwhile do not; the text ends before the stop string (or after it).

Sans-IO: outputs in, outputs out.
"""

import attrs

from ...engine.messages import FinishReason, RequestOutput
from ...engine.sampling_params import SamplingParams
from .detokenizer import IncrementalDetokenizer, make_detokenizer
from .outputs import GenerationOutput, Logprobs
from .stop_strings import StopStrings
from .tokenizer import Tokenizer


@attrs.define(eq=False)
class OutputProcessor:
    """The way of one choice of one request from token ids to text."""

    _detokenizer: IncrementalDetokenizer
    _stops: StopStrings | None
    # The first so many tokens never end the request: their text is not searched.
    _min_tokens: int
    _include_stop: bool

    # Output tokens so far, without those after a stop string.
    token_count: int = attrs.field(default=0, init=False)
    # A stop string ended the request here and the engine does not know yet.
    stopped_here: bool = attrs.field(default=False, init=False)
    ended: bool = attrs.field(default=False, init=False)
    # The text is searched for stop strings: then `handle_tokens` is not for it.
    searches: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.searches = self._stops is not None

    @classmethod
    def make(cls, tokenizer: Tokenizer, params: SamplingParams) -> "OutputProcessor":
        """A fresh one for a request with these parameters."""
        stops = None
        if params.stop:
            stops = StopStrings(params.stop, params.include_stop_str_in_output)
        detokenizer = make_detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
        include_stop = params.include_stop_str_in_output
        return cls(detokenizer, stops, params.min_tokens, include_stop)

    def handle_tokens(self, token_ids: list[int]) -> list[str]:
        """Take the next tokens of a request that is not searched and goes on; the text of each."""
        self.token_count += len(token_ids)
        if len(token_ids) == 1:
            return [self._detokenizer.push_one(token_ids[0])]
        return self._detokenizer.push(token_ids)

    def handle_output(self, output: RequestOutput) -> GenerationOutput:
        """Take the next tokens of the request, in order; must not be called after the end."""
        assert not self.ended
        if self._stops is not None:
            return self._search(output, self._stops)
        finish_reason, shown = output.finish_reason, output.token_ids
        self.token_count += len(shown)
        if finish_reason is None:
            texts = self._detokenizer.push(shown)
        else:
            self.ended = True
            hidden = len(shown) - self._shown_count(output)
            texts = [*self._detokenizer.push(shown[: len(shown) - hidden]), *[""] * hidden]
            if rest := self._detokenizer.finish():
                texts.append(rest)
        return self._output(output, texts)

    def _shown_count(self, output: RequestOutput) -> int:
        """How many tokens have text: a token that ended the request has none, unless asked for."""
        count = len(output.token_ids)
        stopped = output.finish_reason is FinishReason.STOP and not output.complete
        hidden = stopped and not self._include_stop
        return max(count - 1, 0) if hidden else count

    def _search(self, output: RequestOutput, stops: StopStrings) -> GenerationOutput:
        """As above, token by token, so that it is known which one completed a stop string."""
        pieces = []
        shown = self._shown_count(output)
        for place, token_id in enumerate(output.token_ids):
            self.token_count += 1
            text = self._detokenizer.push_one(token_id) if place < shown else ""
            if self.token_count <= self._min_tokens:
                pieces.append(text)
                continue
            piece, matched = stops.push(text)
            pieces.append(piece)
            if matched is not None:
                return self._stop(output, place + 1, pieces, matched)
        if output.finish_reason is not None:
            rest, matched = stops.push(self._detokenizer.finish())
            if matched is None:
                rest += stops.finish()
            if rest:
                pieces.append(rest)
            if matched is not None:
                return self._stop(output, len(output.token_ids), pieces, matched)
            self.ended = True
        return self._output(output, pieces)

    def _stop(
        self, output: RequestOutput, tokens: int, texts: list[str], matched: str
    ) -> GenerationOutput:
        self.ended = True
        self.stopped_here = output.finish_reason is None
        stopped = self._output(output, texts)
        stopped.token_ids = stopped.token_ids[:tokens]
        stopped.finish_reason, stopped.stop_reason = FinishReason.STOP, matched
        if stopped.logprobs is not None:
            stopped.logprobs = stopped.logprobs.between(0, tokens)
        return stopped

    def _output(self, output: RequestOutput, texts: list[str]) -> GenerationOutput:
        return GenerationOutput(
            "".join(texts),
            output.token_ids,
            self.token_count,
            finish_reason=output.finish_reason,
            stop_reason=output.stop_token_id,
            events=output.events,
            logprobs=_logprobs_of(output),
            texts=texts,
        )


def _logprobs_of(output: RequestOutput) -> Logprobs | None:
    """Raises `ValueError` if they are not of these tokens."""
    if output.logprobs is None:
        return None
    logprobs = Logprobs.of(output.logprobs)
    if len(logprobs) != len(output.token_ids):
        raise ValueError(f"{len(logprobs)} logprobs for {len(output.token_ids)} tokens")
    return logprobs
