"""Bytes of every token of a byte-level vocabulary, so that decoding a token is one look-up.

Byte-level BPE spells each byte as one printable character (GPT-2's alphabet); undoing that for
the whole vocabulary once costs a fraction of a second and makes a token cost about 0.2 µs.
Sans-IO: plain data. Must not know files or the tokenizers library.
"""

from collections.abc import Mapping
from typing import Self

import attrs


def _alphabet() -> dict[str, int]:
    """GPT-2's alphabet, {character: byte}: printable bytes spell themselves, others are moved."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {chr(byte): byte for byte in printable}
    # The others are moved to the first code points above the bytes, in order.
    return spelled | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTE_OF_CHARACTER = _alphabet()


def bytes_of_token(token: str) -> bytes:
    """Bytes that a token stands for; one with a character outside the alphabet spells itself."""
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return token.encode()


@attrs.frozen(eq=False)
class TokenTable:
    """`data[id]` are a token's bytes, `texts[id]` its text or None if it needs its neighbours.

    A skipped token and a hole in the vocabulary are empty.
    """

    data: list[bytes]
    texts: list[str | None]

    @classmethod
    def build(cls, vocabulary: Mapping[str, int], size: int, skipped: set[int]) -> Self:
        """Take every token's spelling and id; those in `skipped` become empty."""
        data = [b""] * size
        for token, token_id in vocabulary.items():
            if token_id not in skipped:
                data[token_id] = bytes_of_token(token)
        return cls(data, [_text_or_none(piece) for piece in data])


def _text_or_none(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
