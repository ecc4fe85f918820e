"""Formats logprobs for OpenAI's protocols and vLLM's fields.

Sans-IO: arrays in, JSON out. A token stands there as text, with U+FFFD for bytes that are no whole
character, and as its very bytes, which joined are the text. Entries are JSON text already, put
together from what is constant of each token: there may be millions of them in one answer, and as
objects they would take ten times the memory, and the loop six times as long.
"""

import codecs
from collections.abc import Callable, Iterator, Sequence

import attrs
import msgspec

from ...runtime.text.outputs import Logprobs
from ..schema.fields import JsonObject

# OpenAI's for a token that cannot come; JSON has no infinity.
LOGPROB_MIN = -9999.0

# Bytes of each token id.
Spell = Callable[[Sequence[int]], list[bytes]]
# Logprobs of one token, as JSON text.
Entry = msgspec.Raw


@attrs.frozen(kw_only=True)
class LogprobFormatter:
    """Formats logprobs with the `top` most likely tokens of each, by text, or `by_id`."""

    spell: Spell
    top: int = 0
    by_id: bool = False

    def chat(self, logprobs: Logprobs) -> list[Entry]:
        """Entries of chat completions' `logprobs.content`, and of Responses' `logprobs`."""
        spelled = self._spelled(logprobs)
        heads = {i: self._chat_head(i, data) for i, data in spelled.items()}
        entries = []
        for own, value, ids, values in self._positions(logprobs):
            top = ",".join([f"{heads[i]}{_number(v)}}}" for i, v in zip(ids, values, strict=True)])
            text = f'{heads[own]}{_number(value)},"top_logprobs":[{top}]}}'
            entries.append(Entry(text.encode()))
        return entries

    def completions(
        self,
        prompt: Logprobs | None,
        output: Logprobs | None,
        *,
        offset: int,
        first: int | None = None,
    ) -> JsonObject:
        """The object of completions' `logprobs`: of the prompt, if given, and of the output.

        `first` is the prompt's first token, which has no logprob. `offset` is how much of the
        choice's text comes before the output; the prompt's offsets lead up to it, whatever special
        tokens its text leaves out.
        """
        columns = _Columns()
        if first is not None:
            data = self.spell([first])[0]
            columns.add(data, self._name(first, data), None, None)
        self._add_all(columns, prompt)
        columns.ends_at(offset)
        self._add_all(columns, output)
        return {
            "tokens": columns.tokens,
            "token_logprobs": columns.values,
            "top_logprobs": columns.tops,
            "text_offset": columns.offsets,
        }

    def _add_all(self, columns: "_Columns", logprobs: Logprobs | None) -> None:
        if logprobs is None:
            return
        spelled = self._spelled(logprobs)
        names = {i: self._name(i, data) for i, data in spelled.items()}
        for own, value, ids, values in self._positions(logprobs):
            name, bounded = names[own], _bounded(value)
            # The token itself first; of several with one name the most likely counts.
            tops = {name: bounded}
            for i, v in zip(ids, values, strict=True):
                tops.setdefault(names[i], _bounded(v))
            columns.add(spelled[own], name, bounded, tops)

    def prompt(self, logprobs: Logprobs | None) -> list[Entry | None]:
        """vLLM's `prompt_logprobs`: null for the first token, then objects by token id."""
        found: list[Entry | None] = [None]
        if logprobs is None:
            return found
        heads = {i: _prompt_head(i, data) for i, data in self._spelled(logprobs).items()}
        for place, (own, value, ids, values) in enumerate(self._positions(logprobs)):
            ranked = [
                f'{heads[i]}{rank},"logprob":{_number(v)}}}'
                for rank, (i, v) in enumerate(zip(ids, values, strict=True), 1)
                if i != own
            ]
            ranked.append(f'{heads[own]}{logprobs.ranks[place]},"logprob":{_number(value)}}}')
            found.append(Entry(f"{{{','.join(ranked)}}}".encode()))
        return found

    def _positions(
        self, logprobs: Logprobs
    ) -> Iterator[tuple[int, float, Sequence[int], Sequence[float]]]:
        """Id and logprob of each token, and those of the most likely ones."""
        all_ids, all_values = logprobs.token_ids, logprobs.logprobs
        for begin in range(0, len(all_ids), logprobs.width):
            tops = slice(begin + 1, begin + 1 + min(self.top, logprobs.width - 1))
            yield all_ids[begin], all_values[begin], all_ids[tops], all_values[tops]

    def _spelled(self, logprobs: Logprobs) -> dict[int, bytes]:
        ids = sorted(set(logprobs.token_ids))
        return dict(zip(ids, self.spell(ids), strict=True))

    def _chat_head(self, token_id: int, data: bytes) -> str:
        name = _json(self._name(token_id, data))
        return f'{{"token":{name},"bytes":{_json(list(data))},"logprob":'

    def _name(self, token_id: int, data: bytes) -> str:
        return f"token_id:{token_id}" if self.by_id else _text(data)


@attrs.define(eq=False)
class _Columns:
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


def make_formatter(
    spell: Spell, top: int | None, *, by_id: bool = False
) -> LogprobFormatter | None:
    """Make a formatter of so many most likely tokens; None if `top` is None."""
    return None if top is None else LogprobFormatter(spell=spell, top=top, by_id=by_id)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _prompt_head(token_id: int, data: bytes) -> str:
    return f'"{token_id}":{{"decoded_token":{_json(_text(data))},"rank":'


def _number(value: float) -> str:
    return repr(_bounded(value))


def _bounded(value: float) -> float:
    return value if value > LOGPROB_MIN else LOGPROB_MIN


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
