"""The corpus: well-formed documents, and nothing held out ever among them."""

from __future__ import annotations

import json
import re
from random import Random

import pytest

from triolet.tools.bundled_model import generator
from triolet.tools.bundled_model.words import ANIMALS, CAPITALS, THINGS

DOCUMENTS = 1500


def draw_documents() -> list[str]:
    random = Random(7)
    return [generator.draw_document(random) for _ in range(DOCUMENTS)]


def test_documents_begin_and_end_with_their_tokens() -> None:
    for document in draw_documents():
        assert document.startswith(generator.BOS)
        assert document.endswith(generator.EOS)
        assert document.count(generator.USER) == document.count(generator.ASSISTANT)


def test_one_seed_draws_one_corpus() -> None:
    drawn = [generator.draw_document(Random(seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_no_held_out_pair_is_asked_for_in_training() -> None:
    asked = r"about an? (\w+)(?: named \w+)? and an? (\w+)"
    described = r"JSON[^<]*? (\w+) the (\w+)"
    pairs: set[tuple[str, str]] = set()
    for document in draw_documents():
        pairs.update(re.findall(asked, document))
        pairs.update(re.findall(described, document))
    assert len(pairs) > 300
    assert not [pair for pair in pairs if generator.is_held_out(*pair)]


def test_no_held_out_capital_question_is_in_training() -> None:
    held_out = {
        generator.USER + phrasing.format(country=country) + generator.ASSISTANT
        for country in CAPITALS
        for phrasing in generator.CAPITAL_PHRASINGS
        if generator.is_held_out(country, phrasing)
    }
    corpus = "".join(draw_documents())
    assert not [question for question in held_out if question in corpus]


def test_about_one_combination_in_five_is_held_out() -> None:
    pairs = [(animal.word, thing.word) for animal in ANIMALS for thing in THINGS]
    held_out = sum(generator.is_held_out(*pair) for pair in pairs)
    assert 300 <= held_out <= 400
    # Every animal and every object is seen in training with many partners.
    for animal in ANIMALS:
        assert sum(generator.is_held_out(animal.word, thing.word) for thing in THINGS) < 20


@pytest.mark.parametrize("held_out", [True, False])
def test_prompts_are_drawn_from_their_side(held_out: bool) -> None:
    random = Random(5)
    for _ in range(50):
        story = generator.draw_story_prompt(random, held_out=held_out)
        assert generator.is_held_out(story.animal.word, story.thing.word) == held_out
        assert story.animal.word in story.prompt
        described = generator.draw_description_prompt(random, held_out=held_out)
        name, animal = str(described.values["name"]), str(described.values["animal"])
        assert generator.is_held_out(name, animal) == held_out
        question, country = generator.draw_capital_prompt(random, held_out=held_out)
        assert country in question


def test_json_in_the_corpus_parses() -> None:
    objects = re.findall(r"<\|assistant\|>(\{.*?\})<\|eos\|>", "".join(draw_documents()))
    assert len(objects) > 100
    for text in objects:
        assert {"name", "animal"} <= set(json.loads(text))
