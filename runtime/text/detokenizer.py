"""Incremental detokenizer: token ids to the text that each of them completes.

The promise: however a list of ids is cut into pushes, each token's text is the same, and a
character is given out only when its last byte is there. Bytes that are no UTF-8 become U+FFFD as
in any decoder; an unfinished character at the end becomes one in `finish`, so that the whole is
`Tokenizer.decode` of all ids. Sans-IO: plain computation.

Two ways: byte-level vocabularies look bytes up (`ByteLevelDetokenizer`, about 0.2 µs a token);
all others ask the library to decode a short tail twice (`TailDetokenizer`, some 10 µs a token).
"""

import codecs
from collections.abc import Sequence
from typing import Protocol, cast

import attrs

from .tokenizer import Tokenizer, TokenTable

REPLACEMENT = "\ufffd"
# A UTF-8 character has at most 4 bytes, so more tokens than that never wait for one another.
UNFINISHED_TOKENS_MAX = 4


class IncrementalDetokenizer(Protocol):
    """One request's way from token ids to text."""

    def push(self, token_ids: Sequence[int]) -> list[str]:
        """Text that each of these ids completes; ids outside the vocabulary have none."""

    def push_one(self, token_id: int) -> str:
        """As `push` of this id alone; nearly all come this way."""

    def finish(self) -> str:
        """What is left when no more ids come: "" or one U+FFFD for an unfinished character."""


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
        """Look-ups at once if all ids are texts by themselves, else one by one."""
        texts, size = self.table.texts, len(self.table.texts)
        found = [texts[token_id] if 0 <= token_id < size else None for token_id in token_ids]
        if self._unfinished or None in found:
            return [self.push_one(token_id) for token_id in token_ids]
        return cast("list[str]", found)

    def push_one(self, token_id: int) -> str:
        """One look-up for an id that is a text by itself."""
        texts = self.table.texts
        if not self._unfinished and 0 <= token_id < len(texts):
            text = texts[token_id]
            if text is not None:
                return text
        data = self.table.data
        if not 0 <= token_id < len(data):
            return ""
        whole = self._unfinished + data[token_id]
        text, used = codecs.utf_8_decode(whole, "replace", False)
        self._unfinished = whole[used:]
        return text

    def finish(self) -> str:
        """One U+FFFD if a character is unfinished."""
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
        return text

    def _new_text(self) -> str:
        before = self._decode(self._context)
        return self._decode(self._context + self._unfinished)[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=self.skip_special_tokens)
