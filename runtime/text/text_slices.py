"""Cuts long texts where the token ids of the parts are those of the whole.

Sans-IO: what `tokenizer.json` says in, parts of a text out.

A part ends where no rule of the pre-tokenizer can look across: behind a letter or number, in front
of what cannot belong to it. Every pattern below matches a run of letters (numbers) as far as it
goes, nothing but such a run takes a letter, and none looks behind; so a match ends there in any
case. An apostrophe may begin a contraction and is no such place. Nor is a pair of characters that
stands within an added token, which is looked for before all else. Only known pre-tokenizers are
trusted with that; texts for others stay whole.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Self

import attrs

from ...engine.errors import InvalidParameter

# Size of a part, which holds a thread: some 10 ms of tokenising on a slow core.
SLICE_CHARACTERS = 16_384
# A run without a safe place is one token of the pre-tokenizer, and must be encoded at once: up to
# 0.4 s and 80 MiB for so many characters (emoji; letters take a fifth of that).
RUN_CHARACTERS_MAX = 2**18

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_WHITE_SPACE = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_OTHERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + _WHITE_SPACE
_HEAD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_TAIL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# Split patterns for which that was checked: cl100k as in Llama 3, Qwen 2's, and gpt-oss's o200k.
# GPT-2's pattern is built into the ByteLevel pre-tokenizer.
KNOWN_SPLITS = frozenset(
    {
        _WORD + r"\p{N}{1,3}" + _OTHERS,
        _WORD + r"\p{N}" + _OTHERS,
        rf"{_HEAD}*{_TAIL}+{_CONTRACTIONS}?|{_HEAD}+{_TAIL}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _WHITE_SPACE,
    }
)
# Characters that may follow the end of a part: no letter, number, mark or apostrophe, and nothing
# that a normalizer composes with the character before it.
_FOLLOWERS = ' \t\r\n!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~、。，'


@attrs.frozen
class TextSlicer:
    """`cut` finds a place to cut; None if no place is known to be safe."""

    place: re.Pattern[str] | None

    @classmethod
    def of(cls, specification: dict[str, Any]) -> Self:
        """The slicer of what `tokenizer.json` holds."""
        if not _is_sliceable(specification):
            return cls(None)
        added = [token["content"] for token in specification.get("added_tokens", [])]
        within = {pair for text in added for pair in pairwise(text)}
        followers = [
            each for each in _FOLLOWERS if not any(a.isalnum() and b == each for a, b in within)
        ]
        places = [rf"[^\W_](?=[{re.escape(''.join(followers))}])"]
        if not any(a.isalnum() and b.isalnum() and a.isdigit() != b.isdigit() for a, b in within):
            places += [r"[A-Za-z](?=[0-9])", r"[0-9](?=[A-Za-z])"]
        return cls(re.compile("|".join(places)))

    def slices(
        self,
        text: str,
        slice_characters: int = SLICE_CHARACTERS,
        run_characters_max: int = RUN_CHARACTERS_MAX,
    ) -> Iterator[str]:
        """The parts of a text; each but the last has at least `slice_characters` characters.

        Raises `InvalidParameter` at a run of more than `run_characters_max` without a safe place.
        """
        start = 0
        while self.place is not None and len(text) - start > slice_characters:
            begin = start + slice_characters - 1
            # A match needs the character behind it.
            found = self.place.search(text, begin, begin + run_characters_max + 1)
            if found is None:
                if len(text) - begin > run_characters_max:
                    raise _run_too_long(begin, run_characters_max)
                break
            yield text[start : found.end()]
            start = found.end()
        yield text[start:]


def _run_too_long(begin: int, run_characters_max: int) -> InvalidParameter:
    reason = (
        f"has over {run_characters_max} characters from character {begin} on without a word's end:"
        " such a run cannot be tokenised in parts; break it up with spaces"
    )
    return InvalidParameter("prompt", reason)


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
