"""Logprobs in every shape that clients read; bytes that are no character, ids that share a name."""

from array import array
from collections.abc import Sequence
from typing import Any

from triolet.api.openai.logprobs import LOGPROB_MIN, LogprobFormatter, make_formatter
from triolet.runtime.text.outputs import Logprobs

from ..records import as_read

SPELLED = {1: b"a", 2: b"\xe2\x82", 3: b"\xac", 4: b"a", 5: b" the", 6: b"", 9: b"<|begin|>"}


def spell(token_ids: Sequence[int]) -> list[bytes]:
    return [SPELLED[token_id] for token_id in token_ids]


def make(*positions: tuple[int, float, int, list[tuple[int, float]]]) -> Logprobs:
    width = 1 + len(positions[0][3])
    ids, values = array("i"), array("f")
    for token_id, value, _, top in positions:
        ids.extend([token_id, *[i for i, _ in top]])
        values.extend([value, *[v for _, v in top]])
    return Logprobs(width, ids, values, array("i", [rank for _, _, rank, _ in positions]))


OUTPUT = make((2, -2.0, 3, [(1, -0.5), (4, -1.5)]), (3, float("-inf"), 6, [(3, -0.25), (5, -1.75)]))
FORMATTER = LogprobFormatter(spell=spell, top=2)


def test_without_a_wish_there_is_no_formatter() -> None:
    assert make_formatter(spell, None) is None
    assert make_formatter(spell, 0) == LogprobFormatter(spell=spell, top=0)


def test_entries_of_chat_have_text_and_very_bytes() -> None:
    first, second = as_read(FORMATTER.chat(OUTPUT))
    assert (first["token"], first["logprob"], first["bytes"]) == ("\ufffd", -2.0, [0xE2, 0x82])
    assert first["top_logprobs"] == [
        {"token": "a", "logprob": -0.5, "bytes": [97]},
        {"token": "a", "logprob": -1.5, "bytes": [97]},
    ]
    assert second["logprob"] == LOGPROB_MIN
    whole: Any = [first["bytes"], second["bytes"]]
    assert bytes(whole[0] + whole[1]).decode() == "€"


def test_what_is_no_number_is_written_as_one() -> None:
    odd = make((1, float("nan"), 1, [(2, float("-inf"))]))
    (entry,) = as_read(FORMATTER.chat(odd))
    assert (entry["logprob"], entry["top_logprobs"][0]["logprob"]) == (LOGPROB_MIN, LOGPROB_MIN)
    assert FORMATTER.completions(None, odd, offset=0)["token_logprobs"] == [LOGPROB_MIN]
    assert as_read(FORMATTER.prompt(odd))[1]["1"]["logprob"] == LOGPROB_MIN


def test_no_more_alternatives_than_were_asked_for() -> None:
    assert as_read(LogprobFormatter(spell=spell, top=1).chat(OUTPUT))[0]["top_logprobs"] == [
        {"token": "a", "logprob": -0.5, "bytes": [97]}
    ]
    assert as_read(LogprobFormatter(spell=spell).chat(OUTPUT))[0]["top_logprobs"] == []


def test_completions_tell_prompt_and_output_in_one() -> None:
    prompt = make((5, -1.0, 2, [(1, -0.5)]))
    output = make((1, -0.25, 1, [(1, -0.25)]))
    formatter = LogprobFormatter(spell=spell, top=1)
    assert formatter.completions(prompt, output, offset=5, first=1) == {
        "tokens": ["a", " the", "a"],
        "token_logprobs": [None, -1.0, -0.25],
        "top_logprobs": [None, {" the": -1.0, "a": -0.5}, {"a": -0.25}],
        "text_offset": [0, 1, 5],
    }
    found = formatter.completions(None, output, offset=9)
    assert (found["tokens"], found["text_offset"]) == (["a"], [9])
    assert formatter.completions(None, None, offset=0)["tokens"] == []


def test_offsets_are_places_in_the_text() -> None:
    prompt = make((1, -1.0, 2, []), (5, -1.0, 2, []))
    output = make((2, -2.0, 3, []), (3, -2.0, 3, []), (4, -1.0, 1, []))
    formatter = LogprobFormatter(spell=spell)
    text = "a the" + "€a"
    # The first token, which is special, is not in the text; two tokens share a character.
    found: Any = formatter.completions(prompt, output, offset=len("a the"), first=9)
    assert found["text_offset"] == [0, 0, 1, 5, 5, 6]
    assert text[6:] == "a"
    # Of a text that was truncated there is the end.
    found = formatter.completions(prompt, None, offset=len("cut: a the"), first=9)
    assert found["text_offset"] == [0, 5, 6]


def test_of_two_tokens_with_one_name_the_likelier_counts() -> None:
    found: Any = LogprobFormatter(spell=spell, top=2).completions(None, OUTPUT, offset=0)
    assert found["top_logprobs"][0] == {"\ufffd": -2.0, "a": -0.5}


def test_tokens_by_their_ids() -> None:
    formatter = LogprobFormatter(spell=spell, top=1, by_id=True)
    found = formatter.completions(None, OUTPUT, offset=0)
    assert found["tokens"] == ["token_id:2", "token_id:3"]
    assert as_read(formatter.chat(OUTPUT))[0]["token"] == "token_id:2"


def test_a_prompts_in_vllms_shape() -> None:
    first, second, third = as_read(LogprobFormatter(spell=spell, top=1).prompt(OUTPUT))
    assert first is None
    assert second == {
        "1": {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
        "2": {"logprob": -2.0, "rank": 3, "decoded_token": "\ufffd"},
    }
    assert third == {"3": {"logprob": LOGPROB_MIN, "rank": 6, "decoded_token": "\ufffd"}}
    assert LogprobFormatter(spell=spell).prompt(None) == [None], "a prompt of one token"


def test_a_prompts_tokens_are_spelled_at_once() -> None:
    calls: list[list[int]] = []

    def spell_noted(token_ids: Sequence[int]) -> list[bytes]:
        calls.append(list(token_ids))
        return spell(token_ids)

    LogprobFormatter(spell=spell_noted, top=2).prompt(OUTPUT)
    assert calls == [[1, 2, 3, 4, 5]]
