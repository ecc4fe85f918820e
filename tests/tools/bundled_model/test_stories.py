"""Stories keep their cast: the asked-for words appear, and one seed tells one story."""

from __future__ import annotations

import re
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from triolet.tools.bundled_model import stories
from triolet.tools.bundled_model.words import ANIMAL_BY_WORD, THING_BY_WORD

SEEDS = st.integers(min_value=0, max_value=10**6)


@given(SEEDS)
def test_every_story_names_animal_and_thing_twice(seed: int) -> None:
    random = Random(seed)
    for tell in (stories.tell_story, stories.tell_short_story, stories.tell_long_story):
        cast = stories.draw_cast(random)
        told = re.findall(r"\w+", tell(random, cast).lower())
        assert told.count(cast.animal.word) >= 2
        assert told.count(cast.thing.word) >= 2


@given(SEEDS)
def test_every_field_is_filled_in(seed: int) -> None:
    random = Random(seed)
    told = stories.tell_long_story(random, stories.draw_cast(random))
    assert "{" not in told
    assert "  " not in told
    assert told[-1] in '.!"'


@given(SEEDS)
def test_hero_and_friend_differ(seed: int) -> None:
    cast = stories.draw_cast(Random(seed))
    assert cast.name != cast.friend
    assert cast.animal.word != cast.other.word


def test_the_given_cast_is_used() -> None:
    owl, map_ = ANIMAL_BY_WORD["owl"], THING_BY_WORD["map"]
    cast = stories.draw_cast(Random(1), animal=owl, thing=map_, name="Ruby")
    assert (cast.animal, cast.thing, cast.name) == (owl, map_, "Ruby")


def test_one_seed_tells_one_story() -> None:
    cast = stories.draw_cast(Random(1))
    told = [stories.tell_story(Random(seed), cast) for seed in (1, 1, 2)]
    assert told[0] == told[1] != told[2]


def test_articles_fit_what_follows() -> None:
    random = Random(3)
    for _ in range(300):
        told = stories.tell_story(random, stories.draw_cast(random))
        assert not re.search(r"\b[Aa] [aeiou]", told), told
        assert not re.search(r"\b[Aa]n [^aeiou]", told), told
