"""The tokenizer is the library's, whole or in slices; broken folders are refused by name."""

import contextlib
import json
import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, pre_tokenizers
from tokenizers import Tokenizer as Backend

from triolet.engine.errors import ModelFolderError
from triolet.runtime.text.tokenizer import (
    BYTE_OF_CHARACTER,
    KNOWN_SPLITS,
    Tokenizer,
    TokenTable,
    bytes_of_token,
)

from ..model_folders import SPECIAL_TOKENS, byte_level_tokenizer, write_folder

PIECES = [*"abz AZ  \n\n\r\t'.,!-_\"0123", "ß", "é", "你", "🙂", "²", "\u0301", "\xa0"]
TEXTS = st.lists(st.sampled_from([*PIECES, *SPECIAL_TOKENS, "'s", "cat "]), max_size=60).map(
    "".join
)


def test_loading_says_what_the_model_says(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocabulary_size == 320
    assert tokenizer.special_tokens == {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    assert list(tokenizer.eos_token_ids) == tokenizer.encode("<|end|>", add_special_tokens=False)
    assert (tokenizer.is_byte_level, tokenizer.is_sliceable) == (True, True)


def test_special_tokens_around_a_plain_text(tokenizer: Tokenizer) -> None:
    with_special = tokenizer.encode("the cat")
    assert with_special == [0, *tokenizer.encode("the cat", add_special_tokens=False)]
    assert tokenizer.decode(with_special) == "the cat"
    assert tokenizer.decode(with_special, skip_special_tokens=False) == "<|begin|>the cat"


def test_saved_truncation_is_not_obeyed(tmp_path: pathlib.Path) -> None:
    backend = byte_level_tokenizer()
    backend.enable_truncation(2)
    backend.enable_padding()
    tokenizer = Tokenizer.load(write_folder(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode("the cat sat")) == "the cat sat"


@given(TEXTS, st.integers(1, 8), st.booleans())
def test_slices_give_the_ids_of_the_whole(
    tokenizer: Tokenizer, text: str, size: int, special: bool
) -> None:
    slices = tokenizer.slices(text, size)
    assert "".join(slices) == text
    joined = tokenizer.join_slices(map(tokenizer.encode_slice, slices), add_special_tokens=special)
    assert joined == tokenizer.encode(text, add_special_tokens=special)


@pytest.mark.parametrize("pattern", sorted(KNOWN_SPLITS), ids=["single digits", "three digits"])
def test_known_split_patterns_can_be_sliced(tmp_path: pathlib.Path, pattern: str) -> None:
    backend = byte_level_tokenizer()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer = Tokenizer.load(write_folder(tmp_path, backend))
    assert tokenizer.is_sliceable

    @given(TEXTS, st.integers(1, 8))
    def check(text: str, size: int) -> None:
        joined = tokenizer.join_slices(map(tokenizer.encode_slice, tokenizer.slices(text, size)))
        assert joined == tokenizer.encode(text)

    check()


def test_slices_end_at_the_first_safe_place(tokenizer: Tokenizer) -> None:
    assert tokenizer.slices("the cat sat\non it", 4) == ["the cat", " sat", "\non it"]
    assert tokenizer.slices("....... ......", 4) == ["....... ......"]
    assert tokenizer.slices("", 4) == [""]


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
    assert tokenizer.slices("the cat sat on the mat", 4) == ["the cat sat on the mat"]


def test_a_metaspace_tokenizer_is_neither(metaspace: Tokenizer) -> None:
    assert (metaspace.is_byte_level, metaspace.is_sliceable) == (False, False)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "is missing; save the tokenizer in its fast form"),
        ("{", "is not JSON"),
        ("\udcff", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"model": 1}', "is not a tokenizer"),
        ('{"model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"}}', "has 0 tokens"),
        (
            '{"model": {"type": "WordLevel", "vocab": {"a": 4000000000}, "unk_token": "x"}}',
            "has 4000000001 tokens, or ids up to that",
        ),
    ],
)
def test_broken_folders_are_refused(
    tmp_path: pathlib.Path, content: str | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content, errors="surrogateescape")
    with pytest.raises(ModelFolderError, match=reason) as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.path.endswith("tokenizer.json")


def test_a_template_of_special_tokens_that_are_not_there_is_named(tmp_path: pathlib.Path) -> None:
    folder = write_folder(tmp_path, byte_level_tokenizer())
    path = folder / "tokenizer.json"
    pieces = [
        {"SpecialToken": {"id": "<x>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    template = {
        "type": "TemplateProcessing",
        "single": pieces,
        "pair": pieces,
        "special_tokens": {},
    }
    path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": template}))
    with pytest.raises(ModelFolderError, match="is not a tokenizer"):
        Tokenizer.load(folder)


@settings(max_examples=60)
@given(
    cuts=st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 40)), max_size=3),
    parts=st.lists(st.sampled_from(["[", "]", "{}", "null", "-1", '"x"', "1e9", ","]), max_size=3),
)
def test_any_damage_is_a_tokenizer_or_named(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[int, int]], parts: list[str]
) -> None:
    folder = write_folder(tmp_path_factory.getbasetemp() / "any", byte_level_tokenizer())
    text = (folder / "tokenizer.json").read_text()
    for index, (place, length) in enumerate(cuts):
        begin = place % len(text)
        text = text[:begin] + (parts[index] if index < len(parts) else "") + text[begin + length :]
    (folder / "tokenizer.json").write_text(text)
    with contextlib.suppress(ModelFolderError):
        tokenizer = Tokenizer.load(folder)
        tokenizer.decode(tokenizer.encode("the cat"))


def test_the_alphabet_is_the_librarys() -> None:
    assert set(BYTE_OF_CHARACTER) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(BYTE_OF_CHARACTER.values()) == list(range(256))


def test_a_token_outside_the_alphabet_spells_itself() -> None:
    assert bytes_of_token("Ġcat") == b" cat"
    assert bytes_of_token("two words") == b"two words"
    assert bytes_of_token("Ã") == b"\xc3"


def test_skipped_tokens_and_holes_are_empty_and_half_characters_have_no_text() -> None:
    table = TokenTable.build({"a": 0, "<|end|>": 1, "Ã": 3}, 4, skipped={1})
    assert table.data == [b"a", b"", b"", b"\xc3"]
    assert table.texts == ["a", "", "", None]
