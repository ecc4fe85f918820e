"""The model's tokenizer: text to token ids, and what incremental detokenising needs of it.

A thin face over the `tokenizers` library that reads `tokenizer.json` and, for the names of special
tokens, `tokenizer_config.json`. Long texts can be encoded in slices (`text_slices`), so that a
thread is never busy for long without looking up.

The library keeps the interpreter's lock while it encodes one text, and gives it up while it encodes
a batch. So threads encode batches of one: beside 2^18 characters nothing else waits over 30 ms,
which is what making the list of a million ids takes. Its panics derive from `BaseException`, which
no firewall catches: `_panics_named` stands around every call that is given what a client sent.

Byte-level BPE spells each byte as one printable character (GPT-2's alphabet). `TokenTable` undoes
that for the whole vocabulary once, in a fraction of a second; then decoding a token is one look-up,
about 0.2 µs.
"""

import codecs
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import attrs
import tokenizers

from ...engine.errors import ModelFolderError
from ...engine.model_config.config import VOCAB_SIZE_MAX
from ...engine.model_config.folder import object_of, read_bytes, read_object
from ..errors import TextRefused
from .text_slices import TextSlicer


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


# The largest of popular models have 35 MB; the second file may list all added tokens once more.
TOKENIZER_BYTES_MAX = 256 * 2**20
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_TRIAL = "Some text, 1 2"
# Characters of a panic's words that a client is told.
PANIC_CHARACTERS_MAX = 200
# Unicode's longest canonical decomposition of one character.
NFC_CHARACTERS_MAX = 4
_SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token")


@attrs.define(eq=False)
class Tokenizer:
    """Tokenizer of a model; any thread may encode."""

    folder: str
    # Token ids are below this; the model's vocabulary may be larger (padded).
    vocabulary_size: int
    # The id of its own end token; a model may have more.
    eos_token_ids: tuple[int, ...]
    # {"bos_token": "<s>", …}: what chat templates refer to.
    special_tokens: dict[str, str]
    # Decoding is concatenating bytes: `TokenTable` says which.
    is_byte_level: bool
    slicer: TextSlicer
    # Special tokens before and behind a plain text.
    affixes: tuple[list[int], list[int]]
    # No token stands for more characters of a text; None if that is not known.
    token_characters_max: int | None
    _backend: tokenizers.Tokenizer = attrs.field(repr=False)
    # By whether special tokens are skipped.
    _tables: dict[bool, TokenTable] = attrs.field(factory=dict, init=False, repr=False)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read a model folder. Blocks for up to a second with a large vocabulary.

        Raises `ModelFolderError` when `tokenizer.json` is missing or cannot be used.
        """
        path = pathlib.Path(folder) / "tokenizer.json"
        if not path.exists():
            raise ModelFolderError(path, "is missing; save the tokenizer in its fast form")
        # Windows writes a mark in front, which the library does not read.
        content = read_bytes(path, TOKENIZER_BYTES_MAX).removeprefix(codecs.BOM_UTF8)
        specification = object_of(path, content)
        with _faults_named(path):
            backend = tokenizers.Tokenizer.from_buffer(content)
        # A table has a place for each id up to the largest.
        vocabulary_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if not 0 < vocabulary_size <= VOCAB_SIZE_MAX:
            raise ModelFolderError(path, f"has {vocabulary_size} tokens, or ids up to that")
        # Training may have saved these in the file; a server must not shorten prompts.
        backend.no_truncation()
        backend.no_padding()
        # Batches are of one text; the library would start a thread for each core all the same.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        # Faults such as a template of special tokens that are not there show with the first text.
        with _faults_named(path):
            affixes = _affixes(backend)
        if affixes is None:
            raise ModelFolderError(path, "puts special tokens within a text, which is not served")
        special_tokens = _special_tokens(path.parent)
        is_byte_level = _is_byte_level(specification.get("decoder"))
        eos = backend.token_to_id(special_tokens.get("eos_token", ""))
        return cls(
            folder=str(path.parent),
            vocabulary_size=vocabulary_size,
            eos_token_ids=() if eos is None else (eos,),
            special_tokens=special_tokens,
            is_byte_level=is_byte_level,
            slicer=TextSlicer.of(specification),
            affixes=affixes,
            token_characters_max=_token_characters_max(backend, specification),
            backend=backend,
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a short text; special tokens spelled out in it become those tokens.

        `add_special_tokens` adds what the model expects around a plain text; off for text that a
        chat template has rendered. Keeps the interpreter's lock. Raises `TextRefused`.
        """
        with _panics_named("prompt"):
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def slices(self, text: str) -> Iterator[str]:
        """The parts of a text whose ids, one after the other, are those of the whole.

        Between the `affixes` if special tokens are to be added. Raises as `TextSlicer.slices`.
        """
        return self.slicer.slices(text)

    def encode_slice(self, text: str) -> tokenizers.Encoding:
        """Encode one slice without the interpreter's lock. Raises `TextRefused`.

        `len` of what is returned costs nothing; its `ids` are made anew at each look.
        """
        with _panics_named("prompt"):
            [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=False)
        return encoding

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids as a whole; unknown ids are left out. Raises `TextRefused`."""
        with _panics_named("tokens"):
            return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def decode_in_thread(self, token_ids: list[int]) -> str:
        """Text of many token ids, special ones too, without the interpreter's lock.

        Raises as `decode`.
        """
        with _panics_named("tokens"):
            [text] = self._backend.decode_batch([token_ids], skip_special_tokens=False)
        return text

    @property
    def added_tokens(self) -> dict[str, dict[str, object]]:
        """Added tokens by id, as `tokenizer_config.json` has them: their text, and if special."""
        added = self._backend.get_added_tokens_decoder()
        return {str(i): {"content": t.content, "special": t.special} for i, t in added.items()}

    def token_strings(self, token_ids: Iterable[int]) -> list[str]:
        """How the vocabulary spells each token, bytes in their stand-ins; "" for unknown ids."""
        return [self._backend.id_to_token(token_id) or "" for token_id in token_ids]

    def token_bytes(self, token_ids: Iterable[int]) -> list[bytes]:
        """Bytes of each token, special ones too; b"" for unknown ids."""
        if self.is_byte_level:
            data = self.table(skip_special_tokens=False).data
            return [data[i] if 0 <= i < len(data) else b"" for i in token_ids]
        return [_unspelled(token) for token in self.token_strings(token_ids)]

    def table(self, *, skip_special_tokens: bool) -> TokenTable:
        """Bytes and texts of all tokens, built at the first call; for byte-level tokenizers."""
        assert self.is_byte_level
        table = self._tables.get(skip_special_tokens)
        if table is None:
            added = self._backend.get_added_tokens_decoder()
            skipped = {i for i, token in added.items() if token.special and skip_special_tokens}
            vocabulary = self._backend.get_vocab(with_added_tokens=True)
            table = TokenTable.build(vocabulary, self.vocabulary_size, skipped)
            self._tables[skip_special_tokens] = table
        return table


def _unspelled(token: str) -> bytes:
    """SentencePiece spells a space as ▁ and a byte that is no character as <0xE2>."""
    if _BYTE_TOKEN.fullmatch(token):
        return bytes.fromhex(token[3:5])
    return token.replace("\u2581", " ").encode()


@contextmanager
def _faults_named(path: pathlib.Path) -> Iterator[None]:
    """Whatever the library raises in this block, as `ModelFolderError`."""
    try:
        yield
    except BaseException as error:
        # The library raises plain `Exception`; its panics do not even derive from that.
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        raise ModelFolderError(path, f"is not a tokenizer: {error}") from error


@contextmanager
def _panics_named(field: str) -> Iterator[None]:
    """Raise `TextRefused` for the library's errors and panics about a client's text."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        raise TextRefused(field, str(error)[:PANIC_CHARACTERS_MAX]) from error


def _is_panic(error: BaseException) -> bool:
    """Whether Rust code has panicked: each extension module has a class of its own for that."""
    return type(error).__name__ == "PanicException"


def _affixes(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]] | None:
    """The special tokens before and behind a plain text; None if they are not just that."""
    bare = backend.encode(_TRIAL, add_special_tokens=False).ids
    whole = backend.encode(_TRIAL).ids
    for place in range(len(whole) - len(bare) + 1):
        if bare and whole[place : place + len(bare)] == bare:
            return whole[:place], whole[place + len(bare) :]
    return None


def _token_characters_max(
    backend: tokenizers.Tokenizer, specification: dict[str, Any]
) -> int | None:
    """The longest token's characters, where no rule drops characters or makes one of several.

    So it is where text becomes bytes, each of which has a token: a token has then no more
    characters than bytes. NFC makes one character of at most `NFC_CHARACTERS_MAX`.
    """
    vocabulary = backend.get_vocab(with_added_tokens=True)
    takes_space = any(
        token["lstrip"] or token["rstrip"] for token in specification.get("added_tokens", [])
    )
    if TextSlicer.of(specification).place is None or takes_space:
        return None
    if not all(character in vocabulary for character in BYTE_OF_CHARACTER):
        return None
    shrinking = 1 if specification.get("normalizer") is None else NFC_CHARACTERS_MAX
    return shrinking * max(map(len, vocabulary))


def _special_tokens(folder: pathlib.Path) -> dict[str, str]:
    """By name; older folders have them in a file of their own, which counts for what is missing."""
    found: dict[str, str] = {}
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        path = folder / file
        settings = read_object(path, TOKENIZER_BYTES_MAX) if path.exists() else {}
        for name in _SPECIAL_TOKEN_NAMES:
            value = settings.get(name)
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                found.setdefault(name, value)
    return found


def _is_byte_level(decoder: Any) -> bool:
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "Sequence":
        parts = decoder.get("decoders", [])
        return len(parts) == 1 and _is_byte_level(parts[0])
    return decoder.get("type") == "ByteLevel"
