"""Fuzzes tokenizers: texts of every kind, conversations through the bundled template, token ids.

Invariant: a text becomes ids of the vocabulary, the same in slices as at once, from which it comes
back where tokens are bytes; ids become a text, however they are cut; all else is refused by name,
and no more time is taken than the size is worth.
"""

import json
import pathlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import attrs

from ....runtime.errors import ChatTemplateRefused, TextRefused
from ....runtime.text.chat_template import ChatTemplate
from ....runtime.text.detokenizer import make_detokenizer
from ....runtime.text.template_sandbox import INLINE
from ....runtime.text.text_slices import KNOWN_SPLITS
from ....runtime.text.tokenizer import Tokenizer
from ...doubles.served import BUNDLED
from ...drawing import mutate_json
from ...fuzzer import Fuzzer, bare, each
from ..templates import MESSAGES

# This process's time, whatever the size, and for each character or id.
SECONDS, SECONDS_EACH = 0.2, 50e-6
# Special tokens and what looks like them, spellings of bytes, what patterns look at.
PIECES = (
    "<|bos|>", "<|eos|>", "<|user|>", "<|us", "er|>", "<|", "|>", "<s>", "</s>", "<unk>", "[INST]",
    "<|im_start|>", "<0x41>", "<0xFF>", "\u2581", "\u0120", "\u010a", "a,b", "<|x1|>", "x1",
    "a", "the ", " cat", "Hello", "'s", "'LL", "\u2019t", "1", "12345", "0x7f", "\u0663", "\u00bd",
    " ", "  ", "\t", "\n", "\r\n", "\r", "\x0b", "\x0c", "\x85", "\xa0", "\u2028", "\u3000",
    "\u200b",
    "\0", "\x01", "\x1b[31m", "\x7f", "\ufeff", "\ufffe", "\uffff", "\U0010ffff", "\ue000",
    "\ufffd",
    "\u0301", "\u0e49", "\u0610", "a\u0315\u0300\u05ae", "\u1100\u1161\u11a8", "\uac01", "\u0958",
    "\u212b", "\ufb2c", "\U0001d15e", "\u0344", "\u202e", "\u2066", "\u200d", "\ufe0f",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd",
    "\u4f60\u597d", "\u043f\u0440\u0438", "\u0627\u0644", "\u0e2a\u0e27", "Gr\u00f6\u00dfe",
    "e\u0301",
    "!", "\u2026", "\u2014", "#" * 9, "```", "://", "{\"a\":1}", "\\u0041", "%s", "{{ 1 }}",
)  # fmt: skip
# Text that UTF-8 cannot say; a caller in Python can send it, HTTP cannot.
SURROGATES = ("\ud800", "\udfff", "\ud83d", "\udc00\ud800")
RUN_SHARE, SURROGATE_SHARE = 0.02, 0.03
RUNS = (9, 100, 1000, 5000)
HOSTILE_IDS = (-1, -(2**31), 2**31, 2**32 - 1, 2**32, 2**63, 2**64, -(2**63), 10**30)
SLICE_CHARACTERS = (1, 3, 8, 100)
# The tokenizers: the bundled one, others made from it, one of SentencePiece.
BYTE_LEVEL = ("bundled", "cl100k", "qwen", "o200k")
COMPOSING, PIECEWISE = "composing", "sentencepiece"
NAMES = (*BYTE_LEVEL, COMPOSING, PIECEWISE)


@attrs.frozen
class Text:
    """A text for this tokenizer, in slices of so many characters."""

    name: str
    text: str
    slice_characters: int


@attrs.frozen
class Ids:
    """Token ids for this tokenizer, the first so many in a push of their own."""

    name: str
    ids: tuple[int, ...]
    cut: int


@attrs.frozen
class Chat:
    """A conversation for the bundled template."""

    messages: Any


Event = Text | Ids | Chat


@attrs.frozen
class TokenizerHost:
    """Calls of a tokenizer."""

    encode: Callable[[Tokenizer, str], list[int]]
    decode: Callable[[Tokenizer, list[int]], str]


@cache
def load(name: str) -> Tokenizer:
    """Load one of `NAMES`."""
    specification = json.loads((BUNDLED / "tokenizer.json").read_text())
    if name == PIECEWISE:
        specification |= _sentencepiece()
    elif name != "bundled":
        splits = sorted(KNOWN_SPLITS)
        pattern = splits[BYTE_LEVEL.index(name) - 1 if name in BYTE_LEVEL else 0]
        byte_level = {**specification["pre_tokenizer"], "use_regex": False}
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                 "invert": False}  # fmt: skip
        specification["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
        added = specification["added_tokens"]
        size = len(specification["model"]["vocab"])
        for place, content in enumerate(("<|x1|>", "a,b")):
            added.append({**added[0], "id": size + place, "content": content})
    if name == COMPOSING:
        specification["normalizer"] = {"type": "NFC"}
    with tempfile.TemporaryDirectory(prefix="triolet-fuzz-") as folder:
        (pathlib.Path(folder) / "tokenizer.json").write_text(json.dumps(specification))
        return Tokenizer.load(folder)


def _sentencepiece() -> dict[str, Any]:
    """A small vocabulary in SentencePiece's manner, with bytes for what it lacks."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581",
    *"abcdehlot",
             "th", "the", "\u2581the", "ll"]  # fmt: skip
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "added_tokens": [{"id": i, "content": words[i], **plain,
        "special": True} for i in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "byte_fallback": True,
                  "fuse_unk": True, "vocab": {word: i for i, word in enumerate(words)},
                  "merges": [["t", "h"], ["th", "e"], ["\u2581", "the"], ["l", "l"]]},
    }  # fmt: skip


def _draw_event(chance: Random) -> Event:
    """Texts of pieces and of random characters, runs, ids in and out of range, conversations."""
    which = chance.random()
    if which < 0.05:
        return Chat(mutate_json(chance, MESSAGES))
    name = chance.choice(NAMES)
    if which < 0.4:
        size = load(name).vocabulary_size
        ids = [chance.randrange(size) for _ in range(chance.randrange(1, 24))]
        if chance.random() < 0.2:
            ids[chance.randrange(len(ids))] = chance.choice((*HOSTILE_IDS, size, size + 1))
        return Ids(name, tuple(ids), chance.randrange(len(ids)))
    return Text(name, _draw_text(chance), chance.choice(SLICE_CHARACTERS))


def _draw_text(chance: Random) -> str:
    if chance.random() < RUN_SHARE:
        return chance.choice(PIECES) * chance.choice(RUNS) + chance.choice(PIECES)
    pieces = chance.choices(PIECES, k=chance.randrange(16))
    if chance.random() < 0.3:
        pieces += [_draw_character(chance) for _ in range(chance.randrange(9))]
        chance.shuffle(pieces)
    if chance.random() < SURROGATE_SHARE:
        pieces.insert(chance.randint(0, len(pieces)), chance.choice(SURROGATES))
    return "".join(pieces)


def _draw_character(chance: Random) -> str:
    """Any of Unicode's, assigned or not, but for surrogates."""
    code = chance.randrange(chance.choice((0x80, 0x3000, 0x110000)))
    return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)


def check(events: Sequence[Event], host: TokenizerHost) -> Counter[str]:
    """Each on its tokenizer; see the module's invariant."""
    reached: Counter[str] = Counter()
    for event in events:
        began = time.process_time()
        match event:
            case Text(name, text, _):
                size = len(text)
                reached[_check_text(load(name), event, host)] += 1
            case Ids(name, ids, _):
                size = len(ids)
                reached[_check_ids(load(name), event, host)] += 1
            case Chat(messages):
                size = 1000
                reached[_check_chat(messages, host)] += 1
        assert time.process_time() - began < SECONDS + SECONDS_EACH * size, "for too long"
    return reached


def _check_text(tokenizer: Tokenizer, event: Text, host: TokenizerHost) -> str:
    text = event.text
    try:
        ids = host.encode(tokenizer, text)
    except TextRefused:
        assert any("\ud800" <= character <= "\udfff" for character in text), "refused"
        return "text refused"
    assert all(0 <= token_id < tokenizer.vocabulary_size for token_id in ids)
    parts = list(tokenizer.slicer.slices(text, event.slice_characters))
    in_slices = [i for part in parts for i in tokenizer.encode_slice(part).ids]
    before, behind = tokenizer.affixes
    assert [*before, *in_slices, *behind] == ids, "slices have other ids"
    longest = tokenizer.token_characters_max
    assert longest is None or len(text) <= longest * len(ids), "a token stands for more"
    if event.name in BYTE_LEVEL:
        assert host.decode(tokenizer, in_slices) == text, "another text comes back"
        assert b"".join(tokenizer.token_bytes(in_slices)).decode() == text
    assert all(tokenizer.token_strings(in_slices))
    return "sliced" if len(parts) > 1 else "encoded"


def _check_ids(tokenizer: Tokenizer, event: Ids, host: TokenizerHost) -> str:
    ids, size = list(event.ids), tokenizer.vocabulary_size
    try:
        text = host.decode(tokenizer, ids)
    except TextRefused:
        assert not all(0 <= token_id < 2**32 for token_id in ids), "refused"
        return "ids refused"
    assert text == tokenizer.decode_in_thread(ids)
    text.encode()
    if not all(0 <= token_id < size for token_id in ids):
        return "unknown ids"
    for skips in (False, True):
        at_once = make_detokenizer(tokenizer, skip_special_tokens=skips)
        whole = [*at_once.push(ids), at_once.finish()]
        cut = make_detokenizer(tokenizer, skip_special_tokens=skips)
        pieces = [*cut.push(ids[: event.cut]), *map(cut.push_one, ids[event.cut :]), cut.finish()]
        assert pieces == whole, "the text depends on the cut"
        if tokenizer.is_byte_level:
            assert "".join(whole) == tokenizer.decode(ids, skip_special_tokens=skips)
    return "decoded"


@cache
def _template() -> ChatTemplate:
    return ChatTemplate.load(BUNDLED, load("bundled").special_tokens)


def _check_chat(messages: Any, host: TokenizerHost) -> str:
    try:
        text = _template().render(messages, limits=INLINE)
    except ChatTemplateRefused:
        return "conversation refused"
    host.encode(load("bundled"), text)
    return "rendered"


# ---- planted faults


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text)


def _decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False)


def _encode_apart(tokenizer: Tokenizer, text: str) -> list[int]:
    """Planted: ids of the halves are taken for those of the whole."""
    half = len(text) // 2
    behind = tokenizer.encode(text[half:], add_special_tokens=False)
    return [*tokenizer.encode(text[:half]), *behind]


def _decode_stripped(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Planted: blanks at the end of a text are lost."""
    return _decode(tokenizer, ids).rstrip()


FUZZER = Fuzzer[Event, TokenizerHost](
    name="tokenizer",
    invariant="texts become ids, ids become texts, in slices as at once, or are refused by name",
    draw=each(_draw_event),
    check=check,
    target=TokenizerHost(_encode, _decode),
    faults={
        "what the library says comes up as it is": TokenizerHost(
            bare(_encode, TextRefused), _decode
        ),
        "halves are taken for the whole": TokenizerHost(_encode_apart, _decode),
        "blanks at the end are lost": TokenizerHost(_encode, _decode_stripped),
    },
    round_events=1000,
    smoke_rounds=3,
    reaches=frozenset(
        {
            "text refused",
            "sliced",
            "encoded",
            "ids refused",
            "unknown ids",
            "decoded",
            "conversation refused",
            "rendered",
        }
    ),
    event_s_max=5.0,
)
