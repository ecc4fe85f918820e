"""However ids are cut, the pieces add up to the library's text, in whole characters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.runtime.text.detokenizer import (
    ByteLevelDetokenizer,
    IncrementalDetokenizer,
    TailDetokenizer,
    make_detokenizer,
)
from triolet.runtime.text.tokenizer import Tokenizer

# Any ids of the tiny vocabulary: mostly single bytes, so broken UTF-8 comes often.
IDS = st.lists(st.integers(0, 319), max_size=30)
PIECES = [*"abc  .", "ß", "你", "🙂", "<|end|>", "the cat"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=20).map("".join)


def cut(data: st.DataObject, ids: list[int]) -> list[list[int]]:
    ends = sorted(data.draw(st.sets(st.integers(0, len(ids))), label="cuts") | {len(ids)})
    return [ids[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def run(detokenizer: IncrementalDetokenizer, pieces: list[list[int]]) -> str:
    texts: list[str] = []
    for ids in pieces:
        texts += [detokenizer.push_one(ids[0])] if len(ids) == 1 else detokenizer.push(ids)
    assert len(texts) == sum(map(len, pieces))
    return "".join([*texts, detokenizer.finish()])


@given(st.data(), IDS, st.booleans())
def test_any_cut_of_any_ids_gives_the_text_of_the_whole(
    tokenizer: Tokenizer, data: st.DataObject, ids: list[int], skip: bool
) -> None:
    detokenizer = make_detokenizer(tokenizer, skip_special_tokens=skip)
    assert isinstance(detokenizer, ByteLevelDetokenizer)
    text = run(detokenizer, cut(data, ids))
    assert text == tokenizer.decode(ids, skip_special_tokens=skip)


@given(TEXTS)
def test_a_character_is_given_out_when_it_is_whole(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = make_detokenizer(tokenizer, skip_special_tokens=False)
    given_out = ""
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        piece = detokenizer.push_one(token_id)
        assert "\ufffd" not in piece
        given_out += piece
        assert text.startswith(given_out)
    assert given_out == text
    assert detokenizer.finish() == ""


def test_ids_outside_the_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    detokenizer = make_detokenizer(tokenizer, skip_special_tokens=True)
    (a,) = tokenizer.encode("a", add_special_tokens=False)
    assert [detokenizer.push(ids) for ids in ([a], [9999], [-1], [a, 320, a])] == [
        ["a"],
        [""],
        [""],
        ["a", "", "a"],
    ]


@given(st.data(), TEXTS, st.booleans())
def test_other_tokenizers_add_up_too(
    metaspace: Tokenizer, data: st.DataObject, text: str, skip: bool
) -> None:
    ids = metaspace.encode(text, add_special_tokens=False)
    detokenizer = make_detokenizer(metaspace, skip_special_tokens=skip)
    assert isinstance(detokenizer, TailDetokenizer)
    expected = metaspace.decode(ids, skip_special_tokens=skip)
    assert run(detokenizer, cut(data, ids)) == expected


@given(st.data(), st.lists(st.integers(0, 399), max_size=20))
def test_other_tokenizers_do_not_depend_on_the_cut(
    metaspace: Tokenizer, data: st.DataObject, ids: list[int]
) -> None:
    first = run(make_detokenizer(metaspace, skip_special_tokens=True), [ids])
    second = run(make_detokenizer(metaspace, skip_special_tokens=True), cut(data, ids))
    assert first == second


@pytest.mark.parametrize("skipped", [0, 3, 4, 9])
def test_a_first_space_counts_though_it_has_no_text(metaspace: Tokenizer, skipped: int) -> None:
    for text in (f" {'<|end|>' * skipped} a", f"{'<|end|>' * skipped} <|end|><|end|><|end|>a"):
        ids = metaspace.encode(text, add_special_tokens=False)
        detokenizer = make_detokenizer(metaspace, skip_special_tokens=True)
        expected = metaspace.decode(ids, skip_special_tokens=True)
        assert run(detokenizer, [[token_id] for token_id in ids]) == expected


def test_many_skipped_tokens_are_not_kept(metaspace: Tokenizer) -> None:
    detokenizer = TailDetokenizer(metaspace, skip_special_tokens=True)
    end = metaspace.id_of("<|end|>")
    assert end is not None
    before = "".join(detokenizer.push(metaspace.encode("the cat")))
    assert detokenizer.push([end] * 1000) == [""] * 1000
    assert len(detokenizer._unfinished) < 5
    after = "".join(detokenizer.push(metaspace.encode("cat")))
    assert (before, after) == ("the cat", " cat")
