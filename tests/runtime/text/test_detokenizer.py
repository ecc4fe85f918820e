"""However ids are cut, the pieces add up to the library's text, in whole characters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.messages import FinishReason, RequestOutput
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.text.detokenizer import (
    ByteLevelDetokenizer,
    IncrementalDetokenizer,
    OutputProcessor,
    TailDetokenizer,
    make_detokenizer,
)
from triolet.runtime.text.outputs import GenerationOutput
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
    (end,) = metaspace.encode("<|end|>", add_special_tokens=False)
    before = "".join(detokenizer.push(metaspace.encode("the cat")))
    assert detokenizer.push([end] * 1000) == [""] * 1000
    assert len(detokenizer._unfinished) < 5
    after = "".join(detokenizer.push(metaspace.encode("cat")))
    assert (before, after) == ("the cat", " cat")


def output(
    ids: list[int],
    first: int = 0,
    *,
    finish: FinishReason | None = None,
    stop_token_id: int | None = None,
) -> RequestOutput:
    return RequestOutput(
        request_id="r",
        attempt=1,
        first_index=first,
        token_ids=ids,
        finish_reason=finish,
        stop_token_id=stop_token_id,
    )


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def characters(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token for each (ASCII) character, whatever merges there are."""
    return [token_id for character in text for token_id in ids_of(tokenizer, character)]


def test_tokens_become_text_and_count(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor.make(tokenizer, SamplingParams())
    ids = ids_of(tokenizer, "the 🙂")
    first = processor.handle_output(output(ids[:-1]))
    assert (first.text, first.token_count) == ("the ", len(ids) - 1)
    second = processor.handle_output(output(ids[-1:]))
    assert (second.text, second.token_ids, second.token_count) == ("🙂", ids[-1:], len(ids))
    assert second.finish_reason is None


@pytest.mark.parametrize("size", [1, 2, 100])
def test_tokens_without_more_are_as_good_as_outputs(tokenizer: Tokenizer, size: int) -> None:
    processor = OutputProcessor.make(tokenizer, SamplingParams())
    assert not processor.searches
    ids = ids_of(tokenizer, "the 🙂")
    cut = [ids[start : start + size] for start in range(0, len(ids), size)]
    assert "".join(text for ids in cut for text in processor.handle_tokens(ids)) == "the 🙂"
    last = processor.handle_output(output(ids_of(tokenizer, "a"), finish=FinishReason.LENGTH))
    assert (last.text, last.token_count) == ("a", len(ids) + 1)
    assert OutputProcessor.make(tokenizer, SamplingParams(stop=("a",))).searches


@pytest.mark.parametrize("stop", [(), ("never",)])
def test_the_end_flushes_an_unfinished_character(tokenizer: Tokenizer, stop: tuple[str]) -> None:
    processor = OutputProcessor.make(tokenizer, SamplingParams(stop=stop))
    ids = ids_of(tokenizer, "🙂")[:-1]
    last = processor.handle_output(output(ids, finish=FinishReason.LENGTH))
    assert (last.text, last.finish_reason) == ("\ufffd", FinishReason.LENGTH)
    assert processor.ended
    assert not processor.stopped_here


@pytest.mark.parametrize("stop", [(), ("never",)])
@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "ab")])
def test_the_token_that_ended_it_has_text_only_if_asked_for(
    tokenizer: Tokenizer, stop: tuple[str], include: bool, text: str
) -> None:
    params = SamplingParams(stop=stop, include_stop_str_in_output=include)
    processor = OutputProcessor.make(tokenizer, params)
    ids = characters(tokenizer, "ab")
    last = processor.handle_output(output(ids, finish=FinishReason.STOP, stop_token_id=ids[1]))
    assert last == GenerationOutput(text, ids, 2, 0, FinishReason.STOP, ids[1])


def test_a_stop_string_ends_the_request_at_its_token(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor.make(tokenizer, SamplingParams(stop=("cd",)))
    ids = characters(tokenizer, "abcdef")
    assert processor.handle_output(output(ids[:3])).text == "ab"
    last = processor.handle_output(output(ids[3:], 3))
    assert last == GenerationOutput("", ids[3:4], 4, 0, FinishReason.STOP, "cd")
    assert processor.stopped_here
    with pytest.raises(AssertionError):
        processor.handle_output(output(ids, 6))


def test_a_match_in_the_last_output_leaves_nothing_to_abort(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor.make(
        tokenizer, SamplingParams(stop=("b",), include_stop_str_in_output=True)
    )
    ids = characters(tokenizer, "abc")
    last = processor.handle_output(output(ids, finish=FinishReason.LENGTH))
    assert (last.text, last.token_ids) == ("ab", ids[:2])
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, "b")
    assert not processor.stopped_here


def test_the_first_tokens_never_end_the_request(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor.make(tokenizer, SamplingParams(stop=("ab",), min_tokens=3))
    ids = characters(tokenizer, "ababab")
    last = processor.handle_output(output(ids))
    # The fourth token's "b" alone is searched: a match must begin after the first three.
    assert (last.text, last.token_count) == ("abab", 6)


def test_held_back_text_comes_with_the_end(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor.make(tokenizer, SamplingParams(stop=("abc",)))
    ids = characters(tokenizer, "xab")
    assert processor.handle_output(output(ids)).text == "x"
    last = processor.handle_output(output([], 3, finish=FinishReason.ABORT))
    assert (last.text, last.token_count, last.finish_reason) == ("ab", 3, FinishReason.ABORT)


def test_a_replacement_flushed_at_the_end_can_complete_a_stop_string(tokenizer: Tokenizer) -> None:
    processor = OutputProcessor.make(tokenizer, SamplingParams(stop=("\ufffd",)))
    ids = ids_of(tokenizer, "a🙂")[:-1]
    last = processor.handle_output(output(ids, finish=FinishReason.LENGTH))
    assert (last.text, last.stop_reason) == ("a", "\ufffd")


@given(st.data(), st.text("abc🙂", max_size=20), st.lists(st.text("abc", min_size=1, max_size=3)))
def test_any_cut_of_the_tokens_gives_the_same_answer(
    tokenizer: Tokenizer, data: st.DataObject, text: str, stop: list[str]
) -> None:
    params = SamplingParams(stop=stop[:4], min_tokens=data.draw(st.integers(0, 3)))
    ids = ids_of(tokenizer, text)
    ends = sorted(data.draw(st.sets(st.integers(0, len(ids)))) | {len(ids)})

    def run(pieces: list[list[int]]) -> tuple[str, list[int], FinishReason | None, object]:
        processor = OutputProcessor.make(tokenizer, params)
        outputs, first = [], 0
        for place, piece in enumerate(pieces):
            finish = FinishReason.LENGTH if place == len(pieces) - 1 else None
            outputs.append(processor.handle_output(output(piece, first, finish=finish)))
            first += len(piece)
            if processor.ended:
                break
        joined = "".join(o.text for o in outputs)
        token_ids = [token_id for o in outputs for token_id in o.token_ids]
        assert outputs[-1].token_count == len(token_ids)
        return joined, token_ids, outputs[-1].finish_reason, outputs[-1].stop_reason

    assert run([ids[a:b] for a, b in zip([0, *ends], ends, strict=False)]) == run([ids])
