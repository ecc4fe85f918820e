"""Logprobs as OpenAI's protocols and vLLM's fields tell them.

Sans-IO: arrays in, JSON objects out. A token is told as text, with U+FFFD for bytes that are no
whole character, and as its very bytes, which joined are the text. Must not know requests, frames,
or whose tokenizer it is.
"""

import codecs
from collections.abc import Callable, Sequence

import attrs

from ..runtime.generation import Logprobs, TokenLogprob
from .fields import JsonObject

# OpenAI's for a token that cannot come; JSON has no infinity.
LOGPROB_MIN = -9999.0

# What each token id stands for.
Spell = Callable[[Sequence[int]], list[bytes]]


@attrs.frozen(kw_only=True)
class LogprobTeller:
    """Tells logprobs with the `top` most likely tokens of each, by text, or `by_id`."""

    spell: Spell
    top: int = 0
    by_id: bool = False

    def chat(self, logprobs: Logprobs) -> list[JsonObject]:
        """Entries of chat completions' `logprobs.content`, and of Responses' `logprobs`."""
        spelled = self._spelled(logprobs)
        return [self._chat_entry(token, spelled) for token in logprobs]

    def completions(
        self,
        prompt: Logprobs | None,
        output: Logprobs | None,
        *,
        offset: int,
        first: int | None = None,
    ) -> JsonObject:
        """The object of completions' `logprobs`: of the prompt, if told, and of the output.

        `first` is the prompt's first token, which has no logprob. `offset` is how much of the
        choice's text comes before the output; the prompt's offsets lead up to it, whatever special
        tokens its text leaves out.
        """
        told = _Told()
        if first is not None:
            data = self.spell([first])[0]
            told.add(data, self._name(first, data), None, None)
        self._add_all(told, prompt)
        told.ends_at(offset)
        self._add_all(told, output)
        return {
            "tokens": told.tokens,
            "token_logprobs": told.values,
            "top_logprobs": told.tops,
            "text_offset": told.offsets,
        }

    def _add_all(self, told: "_Told", logprobs: Logprobs | None) -> None:
        spelled = {} if logprobs is None else self._spelled(logprobs)
        for token in logprobs or ():
            data = spelled[token.token_id]
            name, value = self._name(token.token_id, data), _bounded(token.logprob)
            told.add(data, name, value, self._top_names(token, spelled))

    def prompt(self, logprobs: Logprobs | None) -> list[JsonObject | None]:
        """vLLM's `prompt_logprobs`: null for the first token, then objects by token id."""
        found: list[JsonObject | None] = [None]
        if logprobs is None:
            return found
        spelled = self._spelled(logprobs)
        for token in logprobs:
            entry: JsonObject = {}
            for rank, (token_id, value) in enumerate(token.top[: self.top], 1):
                entry[str(token_id)] = _ranked(value, rank, spelled[token_id])
            own = spelled[token.token_id]
            entry[str(token.token_id)] = _ranked(token.logprob, token.rank, own)
            found.append(entry)
        return found

    def _spelled(self, logprobs: Logprobs) -> dict[int, bytes]:
        ids = sorted(set(logprobs.token_ids))
        return dict(zip(ids, self.spell(ids), strict=True))

    def _chat_entry(self, token: TokenLogprob, spelled: dict[int, bytes]) -> JsonObject:
        entry = self._named(token.token_id, token.logprob, spelled)
        top = token.top[: self.top]
        entry["top_logprobs"] = [self._named(i, value, spelled) for i, value in top]
        return entry

    def _named(self, token_id: int, value: float, spelled: dict[int, bytes]) -> JsonObject:
        data = spelled[token_id]
        name = self._name(token_id, data)
        return {"token": name, "logprob": _bounded(value), "bytes": list(data)}

    def _name(self, token_id: int, data: bytes) -> str:
        return f"token_id:{token_id}" if self.by_id else _text(data)

    def _top_names(self, token: TokenLogprob, spelled: dict[int, bytes]) -> dict[str, float]:
        """The token itself first; of several with one name the most likely counts."""
        found = {self._name(token.token_id, spelled[token.token_id]): _bounded(token.logprob)}
        for token_id, value in token.top[: self.top]:
            found.setdefault(self._name(token_id, spelled[token_id]), _bounded(value))
        return found


@attrs.define(eq=False)
class _Told:
    """The columns of completions' `logprobs`, token by token."""

    tokens: list[str] = attrs.field(factory=list)
    values: list[float | None] = attrs.field(factory=list)
    tops: list[dict[str, float] | None] = attrs.field(factory=list)
    offsets: list[int] = attrs.field(factory=list)
    _place: int = 0
    # A character that two tokens share is one, and comes with the second.
    _decoder: codecs.IncrementalDecoder = attrs.field(
        factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def add(
        self, data: bytes, name: str, value: float | None, top: dict[str, float] | None
    ) -> None:
        """The next token, which stands for these bytes."""
        self.tokens.append(name)
        self.values.append(value)
        self.tops.append(top)
        self.offsets.append(self._place)
        self._place += len(self._decoder.decode(data))

    def ends_at(self, offset: int) -> None:
        """The text of all tokens so far ends there."""
        self._place += len(self._decoder.decode(b"", True))
        self._decoder.reset()
        self.offsets = [max(0, place + offset - self._place) for place in self.offsets]
        self._place = offset


def make_teller(spell: Spell, top: int | None, *, by_id: bool = False) -> LogprobTeller | None:
    """One for so many most likely tokens; None if nobody asked (`top` is None)."""
    return None if top is None else LogprobTeller(spell=spell, top=top, by_id=by_id)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _bounded(value: float) -> float:
    return max(value, LOGPROB_MIN)


def _ranked(value: float, rank: int, data: bytes) -> JsonObject:
    return {"logprob": _bounded(value), "rank": rank, "decoded_token": _text(data)}
