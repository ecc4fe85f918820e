"""Words that must not be said, as tokens: with and without a space before them."""

from triolet.runtime.text.input_processor import spell_bad_words
from triolet.runtime.text.tokenizer import Tokenizer

VOCABULARY = {
    "fox": [5],
    " fox": [6],
    "a": [1],
    " a": [2, 1],
    "xy": [7, 8, 8],
    " xy": [9, 8],
    "": [],
}


def encode(text: str) -> list[int]:
    return VOCABULARY.get(text, [3])


def test_both_spellings_are_forbidden() -> None:
    assert spell_bad_words(["fox"], encode) == [[5], [6]]
    assert spell_bad_words([" fox", "xy"], encode) == [[5], [6], [7, 8, 8], [9, 8]]


def test_a_space_of_its_own_is_not_forbidden_again() -> None:
    assert spell_bad_words(["a"], encode) == [[1]]
    assert spell_bad_words([], encode) == []


def test_a_word_of_white_space_is_itself() -> None:
    assert spell_bad_words(["  "], lambda text: [4] if text == "  " else [4, 4]) == [[4]]


def test_with_a_real_tokenizer(tokenizer: Tokenizer) -> None:
    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    for token_ids in spell_bad_words(["the", "cat"], encode):
        assert tokenizer.decode(token_ids).strip() in ("the", "cat")
