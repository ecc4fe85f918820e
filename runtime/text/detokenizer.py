"""Detokenizer: token ids to the text that each completes, and engine outputs to those with text.

The promise: however a list of ids is cut into pushes, each token's text is the same, and a
character is given out only when its last byte is there. Bytes that are no UTF-8 become U+FFFD as
in any decoder; an unfinished character at the end becomes one in `finish`, so that the whole is
`Tokenizer.decode` of all ids. Sans-IO: plain computation.

Two ways: byte-level vocabularies look bytes up (`ByteLevelDetokenizer`, about 0.2 µs a token);
all others ask the library to decode a short tail twice (`TailDetokenizer`, some 10 µs a token).
"""

import codecs
import sys
from collections.abc import Sequence
from typing import Protocol, cast

import attrs

from ...engine.messages import FinishReason, RequestOutput
from ...engine.sampling_params import SamplingParams
from .outputs import GenerationOutput, Logprobs
from .stop_strings import StopStrings
from .tokenizer import Tokenizer, TokenTable

REPLACEMENT = "\ufffd"
# A UTF-8 character has at most 4 bytes, so more tokens than that never wait for one another.
UNFINISHED_TOKENS_MAX = 4


class IncrementalDetokenizer(Protocol):
    """Detokenizer of one request."""

    def push(self, token_ids: Sequence[int]) -> list[str]:
        """Text that each of these ids completes; ids outside the vocabulary have none."""

    def push_one(self, token_id: int) -> str:
        """Text that this id completes; nearly all come this way."""

    def finish(self) -> str:
        """Rest when no more ids come: "" or one U+FFFD for an unfinished character."""


def make_detokenizer(tokenizer: Tokenizer, *, skip_special_tokens: bool) -> IncrementalDetokenizer:
    """The quickest detokenizer that is exact for this tokenizer."""
    if tokenizer.is_byte_level:
        return ByteLevelDetokenizer(tokenizer.table(skip_special_tokens=skip_special_tokens))
    return TailDetokenizer(tokenizer, skip_special_tokens)


@attrs.define(eq=False)
class ByteLevelDetokenizer:
    """Concatenates bytes; `_unfinished` is the beginning of one character, at most 3 bytes."""

    table: TokenTable
    _unfinished: bytes = attrs.field(default=b"", init=False)

    def push(self, token_ids: Sequence[int]) -> list[str]:
        """A look-up for each id that is a text by itself; the others' bytes one by one."""
        texts, size, count = self.table.texts, len(self.table.texts), len(token_ids)
        found: list[str | None]
        if count and min(token_ids) >= 0 and max(token_ids) < size:
            found = list(map(texts.__getitem__, token_ids))
        else:
            found = [texts[token_id] if 0 <= token_id < size else None for token_id in token_ids]
        if self._unfinished or None in found:
            found.append(None)  # where the search ends
            place = 0
            while (place := place if self._unfinished else found.index(None, place)) < count:
                found[place] = self._push_bytes(token_ids[place])
                place += 1
            found.pop()
        return cast("list[str]", found)

    def push_one(self, token_id: int) -> str:
        """Look up an id that is a text by itself."""
        texts = self.table.texts
        if not self._unfinished and 0 <= token_id < len(texts):
            text = texts[token_id]
            if text is not None:
                return text
        return self._push_bytes(token_id)

    def _push_bytes(self, token_id: int) -> str:
        data = self.table.data
        if not 0 <= token_id < len(data):
            return ""
        whole = self._unfinished + data[token_id]
        text, used = codecs.utf_8_decode(whole, "replace", False)
        self._unfinished = whole[used:]
        return text

    def finish(self) -> str:
        text, self._unfinished = self._unfinished.decode("utf-8", "replace"), b""
        return text


@attrs.define(eq=False)
class TailDetokenizer:
    """Decodes the last tokens with and without the new one; the difference is the new text.

    The tail starts one piece before the new one, because decoders treat the first token of a text
    differently (they strip its space). Cost per token does not grow with the text.
    """

    tokenizer: Tokenizer
    skip_special_tokens: bool
    # Tokens whose text was given out, as context, then those whose text was not.
    _context: list[int] = attrs.field(factory=list, init=False)
    _unfinished: list[int] = attrs.field(factory=list, init=False)

    def push(self, token_ids: Sequence[int]) -> list[str]:
        """Text that each id completes."""
        return [self.push_one(token_id) for token_id in token_ids]

    def finish(self) -> str:
        """The text of what was held back."""
        text = self._new_text()
        self._context, self._unfinished = [], []
        return text

    def push_one(self, token_id: int) -> str:
        """Text that this id completes."""
        self._unfinished.append(token_id)
        text = self._new_text()
        unfinished = not text or text.endswith(REPLACEMENT)
        if unfinished and len(self._unfinished) < UNFINISHED_TOKENS_MAX:
            return ""
        if text:
            self._context = self._unfinished
        elif not self._context:
            # The first of a text may be a space that is stripped; it is the first all the same.
            self._context = [each for each in self._unfinished if self._decode([each, each])][:1]
        # Others without text were skipped or unknown: dropped, and the context stays a real one.
        self._unfinished = []
        return sys.intern(text)  # as it is kept for each token, and one word comes often

    def _new_text(self) -> str:
        before = self._decode(self._context)
        return self._decode(self._context + self._unfinished)[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=self.skip_special_tokens)


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
        """Decode token by token, so that it is known which one completed a stop string."""
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
