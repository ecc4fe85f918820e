"""Parts of a text have the token ids of the whole; where no place is safe a text stays whole."""

import json
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from triolet.engine.errors import InvalidParameter
from triolet.runtime.text.text_slices import KNOWN_SPLITS, TextSlicer
from triolet.runtime.text.tokenizer import Tokenizer

from ..model_folders import SPECIAL_TOKENS, byte_level_tokenizer, write_folder

PIECES = [
    *"abzAZ  \n\n\r\t'.,!-_\"0123()<|>{}=/",
    "ß",
    "é",
    "你",
    "。",
    "🙂",
    "²",
    "\u0301",
    "\xa0",
]
TEXTS = st.lists(st.sampled_from([*PIECES, *SPECIAL_TOKENS, "'s", "cat ", "x1"]), max_size=60).map(
    "".join
)


def joined(tokenizer: Tokenizer, text: str, size: int) -> list[int]:
    """The ids of the parts, put together."""
    parts = list(tokenizer.slicer.slices(text, size))
    assert "".join(parts) == text
    before, behind = tokenizer.affixes
    return [*before, *(i for part in parts for i in tokenizer.encode_slice(part).ids), *behind]


@given(TEXTS, st.integers(1, 8))
def test_slices_give_the_ids_of_the_whole(tokenizer: Tokenizer, text: str, size: int) -> None:
    assert joined(tokenizer, text, size) == tokenizer.encode(text)


@pytest.mark.parametrize("pattern", sorted(KNOWN_SPLITS), ids=["cl100k", "qwen", "o200k"])
@pytest.mark.parametrize("composes", [False, True])
def test_known_split_patterns_can_be_sliced(
    tmp_path: pathlib.Path, pattern: str, *, composes: bool
) -> None:
    backend = byte_level_tokenizer()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    if composes:
        backend.normalizer = normalizers.NFC()
    backend.add_special_tokens(["<|x1|>", "a,b"])
    tokenizer = Tokenizer.load(write_folder(tmp_path, backend))
    assert tokenizer.slicer.place is not None

    @given(
        st.lists(st.sampled_from([*PIECES, "<|x1|>", "a,b", "x1"]), max_size=60), st.integers(1, 8)
    )
    def check(pieces: list[str], size: int) -> None:
        text = "".join(pieces)
        assert joined(tokenizer, text, size) == tokenizer.encode(text)

    check()


def test_slices_end_at_the_first_safe_place(tokenizer: Tokenizer) -> None:
    def parts(text: str) -> list[str]:
        return list(tokenizer.slicer.slices(text, 4))

    assert parts("the cat sat\non it") == ["the cat", " sat", "\non it"]
    assert parts("....... ......") == ["....... ......"]
    assert parts("abcdefghij12,,345678") == ["abcdefghij", "12,,345678"]
    assert parts('{"name":"value","n":[1,2,3]}')[:2] == ['{"name', '":"value']
    assert parts("it's 'tis") == ["it's", " 'tis"]
    assert parts("<|begin|>") == ["<|begin|>"]
    assert parts("") == [""]


def test_no_part_ends_within_an_added_token() -> None:
    slicer = TextSlicer.of(specification(byte_level_tokenizer(), "x1", "a,b"))
    assert list(slicer.slices("xxxx1xxxx,xxxx;xxxx", 1)) == ["xxxx1xxxx,xxxx", ";xxxx"]


def test_a_run_without_a_place_is_bounded(tokenizer: Tokenizer) -> None:
    def parts(text: str) -> int:
        return len(list(tokenizer.slicer.slices(text, 4, run_characters_max=20)))

    for run in ("A" * 23, " " * 23, "!" * 23, "🙂" * 23):
        assert parts(run) == 1
        with pytest.raises(InvalidParameter, match="over 20 characters from character 3 on"):
            parts(run + run[0])
        with pytest.raises(InvalidParameter):
            parts(run * 2 + "a b")
    assert parts("A" * 23 + " b") == 2


def specification(backend: Backend, *added: str) -> dict[str, object]:
    """What its file holds."""
    backend.add_special_tokens(list(added))
    found: dict[str, object] = json.loads(backend.to_str())
    return found


def _unsliceable(change: str) -> Backend:
    backend = byte_level_tokenizer()
    if change == "prefix space":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    elif change == "unknown split":
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r"\w+\s"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    elif change == "token that takes the space after it":
        backend.add_tokens([AddedToken("cat", rstrip=True)])
    else:
        backend.add_tokens(["two words"])
    return backend


@pytest.mark.parametrize(
    "change",
    ["prefix space", "unknown split", "token with a space", "token that takes the space after it"],
)
def test_others_are_never_cut(tmp_path: pathlib.Path, change: str) -> None:
    tokenizer = Tokenizer.load(write_folder(tmp_path, _unsliceable(change)))
    assert list(tokenizer.slicer.slices("the cat sat on the mat", 4)) == ["the cat sat on the mat"]
