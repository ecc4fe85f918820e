"""The corpus's words: enough of them, none twice, and articles that fit."""

from __future__ import annotations

import pytest

from triolet.tools.bundled_model import words


def test_no_word_is_listed_twice() -> None:
    for listed in (
        [animal.word for animal in words.ANIMALS],
        [thing.word for thing in words.THINGS],
        [place.word for place in words.PLACES],
        list(words.NAMES),
        list(words.CAPITALS.values()),
    ):
        assert len(listed) == len(set(listed))


def test_animals_and_things_share_no_word() -> None:
    # A story is checked for both words, so one word must not count as both.
    assert not set(words.ANIMAL_BY_WORD) & set(words.THING_BY_WORD)


def test_the_lists_are_large_enough_for_held_out_combinations() -> None:
    assert len(words.ANIMALS) == 40
    assert len(words.THINGS) == 40
    assert len(words.NAMES) > 50
    assert len(words.CAPITALS) > 50


def test_every_row_is_whole() -> None:
    assert all(len(animal.traits) == 3 and animal.sound for animal in words.ANIMALS)
    assert all(thing.looks and thing.powers for thing in words.THINGS)
    assert words.CAPITALS["the Netherlands"] == "Amsterdam"


@pytest.mark.parametrize(
    ("plain", "with_article"),
    [("owl", "an owl"), ("fox", "a fox"), ("old map", "an old map"), ("umbrella", "an umbrella")],
)
def test_with_article(plain: str, with_article: str) -> None:
    assert words.with_article(plain) == with_article


def test_capitalized_keeps_the_rest() -> None:
    assert words.capitalized("a New day") == "A New day"
