"""The checkers on hand-written answers, and batched generation against one by one."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer

from triolet.tools.bundled_model import evaluation
from triolet.tools.bundled_model.evaluation import Answer, Generator, Score
from triolet.tools.bundled_model.generator import DescriptionPrompt, StoryPrompt
from triolet.tools.bundled_model.training import train_tokenizer
from triolet.tools.bundled_model.training_model import ModelShape, TrainingModel
from triolet.tools.bundled_model.words import ANIMAL_BY_WORD, THING_BY_WORD

STORY = StoryPrompt("a story", ANIMAL_BY_WORD["owl"], THING_BY_WORD["map"])
DESCRIPTION = DescriptionPrompt("as JSON", {"name": "Ruby", "animal": "owl", "age": 1})


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("An owl had a map. The owl read the map.", True),
        ("Owl and map! said the owl, and took the Map.", True),
        ("An owl had a map. It read the map.", False),
        ("An owl had maps. The owl liked maps.", False),
        ("A fox had a map. The fox read the map.", False),
    ],
)
def test_stories(text: str, right: bool) -> None:
    assert evaluation.story_is_right(STORY, Answer(text, ended=True)) == right
    assert not evaluation.story_is_right(STORY, Answer(text, ended=False))


@pytest.mark.parametrize(
    ("country", "text", "right"),
    [
        ("France", "The capital of France is Paris.", True),
        ("France", "Paris", True),
        ("France", "The capital of France is Rome.", False),
        ("France", "Paris or Rome.", False),
        ("France", "The capital of France is Parisian.", False),
        ("Mexico", "The capital of Mexico is Mexico City.", True),
        ("Mexico", "The capital of Mexico is Mexico.", False),
    ],
)
def test_capitals(country: str, text: str, right: bool) -> None:
    assert evaluation.capital_is_right(country, Answer(text, ended=True)) == right


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"name": "Ruby", "animal": "owl", "age": 1}', True),
        ('{"age": 1, "animal": "owl", "name": "Ruby"}', True),
        ('{"name": "Ruby", "animal": "owl", "age": true}', False),
        ('{"name": "Ruby", "animal": "owl", "age": "1"}', False),
        ('{"name": "Ruby", "animal": "owl"}', False),
        ('{"name": "Ruby", "animal": "owl", "age": 1, "home": "barn"}', False),
        ('Sure: {"name": "Ruby", "animal": "owl", "age": 1}', False),
        ('{"name": "Ruby", "animal": "owl", "age": 1', False),
    ],
)
def test_descriptions(text: str, right: bool) -> None:
    assert evaluation.description_is_right(DESCRIPTION, Answer(text, ended=True)) == right


def test_a_score_passes_at_its_minimum() -> None:
    assert Score("stories", right=95, asked=100, share_min=0.95).passed
    assert not Score("stories", right=94, asked=100, share_min=0.95).passed


@pytest.fixture(scope="module")
def generator() -> Generator:
    torch.manual_seed(0)
    tokenizer: Tokenizer = train_tokenizer(0, documents=60)
    shape = ModelShape(tokenizer.get_vocab_size(), hidden=16, head_channels=4, intermediate=24)
    return Generator(TrainingModel(shape).eval(), tokenizer, answer_tokens_max=12)


def test_a_batch_answers_as_one_by_one(generator: Generator) -> None:
    prompts = ["Hi", "Tell me a story about an owl and a map.", "What is 2 + 3?"]
    together = generator.answer(prompts, temperature=0)
    alone = [generator.answer([prompt], temperature=0)[0] for prompt in prompts]
    assert together == alone


def test_a_drawn_answer_follows_its_seed(generator: Generator) -> None:
    answers = [generator.answer(["Hi"], temperature=1.0, seed=seed)[0] for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]


def test_the_prompts_are_different_and_counted(generator: Generator) -> None:
    scores = evaluation.evaluate(generator, prompts=4)
    assert [score.asked for score in scores] == [4, 4, 4, 4]
    # A model of random weights is refused: the evaluation can fail.
    assert not any(score.passed for score in scores)
    assert all(len(set(score.wrong)) == 4 for score in scores)


def test_loss_of_random_weights_is_that_of_guessing(generator: Generator) -> None:
    loss = evaluation.measure_loss(generator.model, generator.tokenizer, documents=3)
    guessing = torch.log(torch.tensor(float(generator.tokenizer.get_vocab_size()))).item()
    assert loss == pytest.approx(guessing, rel=0.02)
