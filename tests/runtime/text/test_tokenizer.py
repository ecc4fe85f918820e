"""The tokenizer is the library's, whole or in slices; broken folders are refused by name."""

import contextlib
import copy
import json
import pathlib
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as Backend

from triolet.engine.errors import ModelFolderError
from triolet.runtime.errors import TextRefused
from triolet.runtime.text.tokenizer import (
    BYTE_OF_CHARACTER,
    Tokenizer,
    TokenTable,
    bytes_of_token,
)

from ..model_folders import byte_level_tokenizer, write_folder


def test_loading_says_what_the_model_says(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocabulary_size == 320
    assert tokenizer.special_tokens == {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    assert list(tokenizer.eos_token_ids) == tokenizer.encode("<|end|>", add_special_tokens=False)
    assert tokenizer.is_byte_level
    assert tokenizer.affixes == (tokenizer.encode("<|begin|>", add_special_tokens=False), [])
    assert tokenizer.token_characters_max == len("<|begin|>")


def test_special_tokens_around_a_plain_text(tokenizer: Tokenizer) -> None:
    with_special = tokenizer.encode("the cat")
    assert with_special == [0, *tokenizer.encode("the cat", add_special_tokens=False)]
    assert tokenizer.decode(with_special) == "the cat"
    assert tokenizer.decode(with_special, skip_special_tokens=False) == "<|begin|>the cat"


def test_special_tokens_may_stand_in_a_file_of_their_own(tmp_path: pathlib.Path) -> None:
    folder = write_folder(tmp_path, byte_level_tokenizer())
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    own = {"bos_token": {"content": "<|begin|>"}, "eos_token": "<|begin|>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(own))
    tokens = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    assert Tokenizer.load(folder).special_tokens == tokens


def test_a_byte_order_mark_is_no_fault(tmp_path: pathlib.Path) -> None:
    path = write_folder(tmp_path, byte_level_tokenizer()) / "tokenizer.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    tokenizer = Tokenizer.load(path.parent)
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"


def test_saved_truncation_is_not_obeyed(tmp_path: pathlib.Path) -> None:
    backend = byte_level_tokenizer()
    backend.enable_truncation(2)
    backend.enable_padding()
    tokenizer = Tokenizer.load(write_folder(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode("the cat sat")) == "the cat sat"


class PanicException(BaseException):
    """A panic as the library raises it."""


class _Panicking:
    def encode(self, *_: object, **__: object) -> None:
        raise PanicException("Onig: Regex search error: retry-limit-in-match over")

    encode_batch_fast = decode = decode_batch = encode


def test_a_panic_of_the_library_is_an_error_of_its_text(tokenizer: Tokenizer) -> None:
    panicking = copy.copy(tokenizer)
    panicking._backend = cast("Backend", _Panicking())
    calls: list[Callable[[], object]] = [
        lambda: panicking.encode("a"),
        lambda: panicking.encode_slice("a"),
        lambda: panicking.decode([1]),
        lambda: panicking.decode_in_thread([1]),
    ]
    for call in calls:
        with pytest.raises(TextRefused, match=r"tokenizer failed at the .*retry-limit"):
            call()


def test_a_real_panic_is_one_of_those(tmp_path: pathlib.Path) -> None:
    backend = byte_level_tokenizer()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$|."), "isolated")
    tokenizer = Tokenizer.load(write_folder(tmp_path, backend))
    with pytest.raises(TextRefused):
        tokenizer.encode_slice("a" * 36 + "!")


def test_other_exits_pass(tokenizer: Tokenizer) -> None:
    class _Interrupted(_Panicking):
        def encode(self, *_: object, **__: object) -> None:
            raise KeyboardInterrupt

    interrupted = copy.copy(tokenizer)
    interrupted._backend = cast("Backend", _Interrupted())
    with pytest.raises(KeyboardInterrupt):
        interrupted.encode("a")


def test_a_metaspace_tokenizer_is_neither(metaspace: Tokenizer) -> None:
    assert not metaspace.is_byte_level
    assert list(metaspace.slices("the cat " * 9000)) == ["the cat " * 9000]
    assert metaspace.token_characters_max is None


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
