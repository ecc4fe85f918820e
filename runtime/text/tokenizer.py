"""The model's tokenizer: text to token ids, and what incremental detokenising needs of it.

A thin face over the `tokenizers` library that reads `tokenizer.json` and, for the names of special
tokens, `tokenizer_config.json`. Long texts can be encoded in slices, so that a thread is never busy
for long without looking up; a slice ends where no rule of the pre-tokenizer can look across, and
only known pre-tokenizers are trusted with that.

Byte-level BPE spells each byte as one printable character (GPT-2's alphabet). `TokenTable` undoes
that for the whole vocabulary once, in a fraction of a second; then decoding a token is one look-up,
about 0.2 µs.
"""

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
from ...engine.model_config.folder import read_object


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
# About 10 ms of tokenising each on a slow core: what cancelling has to wait for.
SLICE_CHARACTERS = 16_384
# A slice ends between a letter or number and white space. Every pattern below matches a run of
# letters (numbers) as far as it goes, and nothing but such a run takes a letter, so that a match
# ends there in any case; and none of them looks behind.
_CUT = re.compile(r"[^\W_](?=[ \n])")
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_WHITE_SPACE = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Split patterns for which that was checked: cl100k as in Llama 3, and Qwen 2's. GPT-2's pattern
# is built into the ByteLevel pre-tokenizer.
KNOWN_SPLITS = frozenset(
    {
        _CONTRACTIONS + r"\p{N}{1,3}" + _WHITE_SPACE,
        _CONTRACTIONS + r"\p{N}" + _WHITE_SPACE,
    }
)
_TRIAL = "Some text, 1 2"
_SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token")


@attrs.define(eq=False)
class Tokenizer:
    """One model's tokenizer; any thread may encode."""

    folder: str
    # Token ids are below this; the model's vocabulary may be larger (padded).
    vocabulary_size: int
    # The id of its own end token; a model may have more.
    eos_token_ids: tuple[int, ...]
    # {"bos_token": "<s>", …}: what chat templates refer to.
    special_tokens: dict[str, str]
    # Decoding is concatenating bytes: `TokenTable` says which.
    is_byte_level: bool
    # `slices` cuts; otherwise it gives the text back whole.
    is_sliceable: bool
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
        specification = read_object(path, TOKENIZER_BYTES_MAX)
        with _faults_named(path):
            backend = tokenizers.Tokenizer.from_file(str(path))
        # A table has a place for each id up to the largest.
        vocabulary_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if not 0 < vocabulary_size <= VOCAB_SIZE_MAX:
            raise ModelFolderError(path, f"has {vocabulary_size} tokens, or ids up to that")
        # Training may have saved these in the file; a server must not shorten prompts.
        backend.no_truncation()
        backend.no_padding()
        # Some faults show with the first text: a template of special tokens that are not there.
        with _faults_named(path):
            backend.encode(_TRIAL)
        special_tokens = _special_tokens(path.parent)
        eos = backend.token_to_id(special_tokens.get("eos_token", ""))
        return cls(
            folder=str(path.parent),
            vocabulary_size=vocabulary_size,
            eos_token_ids=() if eos is None else (eos,),
            special_tokens=special_tokens,
            is_byte_level=_is_byte_level(specification.get("decoder")),
            is_sliceable=_is_sliceable(specification),
            backend=backend,
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens spelled out in it become those tokens.

        `add_special_tokens` adds what the model expects around a plain text; off for text that a
        chat template has rendered. Holds no lock of the interpreter while it works.
        """
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def slices(self, text: str, slice_characters: int = SLICE_CHARACTERS) -> list[str]:
        """Cut a text so that encoding the slices one by one gives the ids of the whole.

        A slice has at least `slice_characters` characters and ends at the next safe place.
        """
        if not self.is_sliceable:
            return [text]
        slices, start = [], 0
        while len(text) - start > slice_characters:
            found = _CUT.search(text, start + slice_characters - 1)
            if found is None:
                break
            slices.append(text[start : found.end()])
            start = found.end()
        slices.append(text[start:])
        return slices

    def encode_slice(self, text: str) -> tokenizers.Encoding:
        """Encode one slice, for `join_slices`."""
        return self._backend.encode(text, add_special_tokens=False)

    def join_slices(
        self, encodings: Iterable[tokenizers.Encoding], *, add_special_tokens: bool = True
    ) -> list[int]:
        """Token ids of the whole text, as `encode` gives them."""
        whole = tokenizers.Encoding.merge(list(encodings), growing_offsets=True)
        return self._backend.post_process(whole, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids as a whole; unknown ids are left out."""
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    @property
    def added_tokens(self) -> dict[str, dict[str, object]]:
        """Added tokens by id, as `tokenizer_config.json` has them: their text, and if special."""
        added = self._backend.get_added_tokens_decoder()
        return {str(i): {"content": t.content, "special": t.special} for i, t in added.items()}

    def token_strings(self, token_ids: Iterable[int]) -> list[str]:
        """How the vocabulary spells each token, bytes in their stand-ins; "" for unknown ids."""
        return [self._backend.id_to_token(token_id) or "" for token_id in token_ids]

    def token_bytes(self, token_ids: Iterable[int]) -> list[bytes]:
        """What each token stands for, special ones too; b"" for unknown ids."""
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
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelFolderError(path, f"is not a tokenizer: {error}") from error


def _special_tokens(folder: pathlib.Path) -> dict[str, str]:
    path = folder / "tokenizer_config.json"
    settings = read_object(path, TOKENIZER_BYTES_MAX) if path.exists() else {}
    found = {}
    for name in _SPECIAL_TOKEN_NAMES:
        value = settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def _is_byte_level(decoder: Any) -> bool:
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "Sequence":
        parts = decoder.get("decoders", [])
        return len(parts) == 1 and _is_byte_level(parts[0])
    return decoder.get("type") == "ByteLevel"


def _is_sliceable(specification: dict[str, Any]) -> bool:
    """A known pre-tokenizer, no added token that takes white space with it, and no normalizer
    but NFC (which composes nothing with white space)."""
    normalizer = specification.get("normalizer")
    if normalizer is not None and normalizer.get("type") != "NFC":
        return False
    for token in specification.get("added_tokens", []):
        has_space = any(character.isspace() for character in token["content"])
        if has_space or token["rstrip"] or token["single_word"]:
            return False
    pre_tokenizer = specification.get("pre_tokenizer") or {}
    match pre_tokenizer.get("pretokenizers", [pre_tokenizer]):
        case [{"type": "ByteLevel", "add_prefix_space": False} as byte_level]:
            return bool(byte_level.get("use_regex", True))
        case [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"} as split,
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ]:
            return pattern in KNOWN_SPLITS and not split.get("invert", False)
        case _:
            return False
