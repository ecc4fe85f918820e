"""The bundled model: a small training to loadable artefacts, and the evaluation of its answers."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import jinja2
import pytest
import torch
from tokenizers import Tokenizer

from triolet.tools.bundled_model import artefacts, evaluation, training
from triolet.tools.bundled_model.evaluation import Answer, Generator
from triolet.tools.bundled_model.generator import (
    SPECIAL_TOKENS,
    DescriptionPrompt,
    Exchange,
    StoryPrompt,
    render,
)
from triolet.tools.bundled_model.training import Phase, Plan, train_tokenizer
from triolet.tools.bundled_model.training_model import ModelShape, TrainingModel
from triolet.tools.bundled_model.words import ANIMAL_BY_WORD, THING_BY_WORD

PLAN = Plan(
    phases=(Phase(3, 64, 32, copying_share=0.5), Phase(3, 64, 64)), warmup_steps=1, decay_steps=3
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return training.train_tokenizer(0, documents=60)


def make_shape(vocabulary: int) -> ModelShape:
    return ModelShape(vocabulary, 16, 1, head_channels=4, intermediate=24)


def make_model(tokenizer: Tokenizer) -> TrainingModel:
    torch.manual_seed(0)
    return TrainingModel(make_shape(tokenizer.get_vocab_size()))


def test_any_text_survives_the_tokenizer(tokenizer: Tokenizer) -> None:
    for text in ("Ruby the owl", "naïve — 東京 🦉", "  two\n\nlines  ", "<|user|>Hi<|assistant|>"):
        encoded = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text


def test_the_tokenizer_adds_the_begin_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("Hi").ids[0] == 0
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]


def test_windows_depend_on_seed_and_step_only(tokenizer: Tokenizer) -> None:
    first = training.draw_windows(tokenizer, PLAN, 2)
    assert first.shape == (2, 33)
    assert bool((first[:, 0] == 0).all())
    assert torch.equal(first, training.draw_windows(tokenizer, PLAN, 2))
    assert not torch.equal(first, training.draw_windows(tokenizer, PLAN, 1))
    assert training.draw_windows(tokenizer, PLAN, 5).shape == (1, 65)


def test_the_plan_falls_to_zero_and_counts_its_phases() -> None:
    assert PLAN.steps == 6
    plan = Plan(phases=(Phase(2, 64, 32), Phase(3, 32, 32)))
    assert [plan.tokens_until(step) for step in (0, 1, 2, 3, 5)] == [0, 64, 128, 160, 224]
    shares = [PLAN.rate_share_at(step) for step in range(PLAN.steps)]
    assert shares == pytest.approx([1, 1, 1, 1, 2 / 3, 1 / 3])
    assert [PLAN.phase_at(step).window_tokens for step in range(6)] == [32] * 3 + [64] * 3
    with pytest.raises(IndexError):
        PLAN.phase_at(6)
    assert Plan(warmup_steps=10).rate_share_at(4) == 0.5


@pytest.mark.slow
def test_steps_lower_the_loss_and_repeat_exactly(tokenizer: Tokenizer) -> None:
    def run() -> list[float]:
        model = make_model(tokenizer)
        optimizers = training.make_optimizers(model, PLAN)
        windows = training.draw_windows(tokenizer, PLAN, 0)
        return [training.train_step(model, optimizers, windows, 1.0) for _ in range(3)]

    losses = run()
    assert losses[0] > losses[1] > losses[2]
    assert losses == run()


def test_a_checkpoint_goes_on_as_if_nothing_had_happened(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    windows = [training.draw_windows(tokenizer, PLAN, step) for step in range(3)]
    model = make_model(tokenizer)
    optimizers = training.make_optimizers(model, PLAN)
    for step in (0, 1):
        training.train_step(model, optimizers, windows[step], 1.0)
    training.write_checkpoint(tmp_path / "state", model, optimizers, 2)
    expected = [training.train_step(model, optimizers, windows[2], 1.0) for _ in range(2)]

    other = make_model(tokenizer)
    other_optimizers = training.make_optimizers(other, PLAN)
    assert training.read_checkpoint(tmp_path / "state", other, other_optimizers) == 2
    again = [training.train_step(other, other_optimizers, windows[2], 1.0) for _ in range(2)]
    assert again == expected


def test_a_run_leaves_a_whole_model_folder(tmp_path: Path) -> None:
    plan = attrs.evolve(PLAN, tokenizer_documents=60, checkpoint_period_steps=2)
    run = training.train(tmp_path, plan, make_shape)
    stopped = [next(run) for _ in range(4)]
    assert [step for step, _ in stopped] == [0, 1, 2, 3]
    # Stopped before its fourth step was written, so a second run goes on after the second.
    resumed = list(training.train(tmp_path, plan, make_shape))
    assert resumed[:2] == stopped[2:]
    assert [step for step, _ in resumed] == [2, 3, 4, 5]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        *("config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json", "checkpoint"),
    }


def test_the_safetensors_package_reads_ours(tmp_path: Path) -> None:
    safetensors_torch = pytest.importorskip("safetensors.torch")
    tensors = {"one": torch.randn(3, 5).bfloat16(), "turned": torch.randn(4, 2).t()}
    artefacts.write_safetensors(tmp_path / "x.safetensors", tensors)
    read = safetensors_torch.load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_the_shape_is_read_back(tmp_path: Path) -> None:
    shape = ModelShape(vocabulary=77, hidden=32, layers=3, rope_theta=500.0)
    artefacts.write_settings(tmp_path, shape)
    assert artefacts.read_shape(tmp_path) == shape
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, 1)
    assert config["torch_dtype"] == "bfloat16"


def test_the_chat_template_is_what_training_saw(tmp_path: Path) -> None:
    artefacts.write_settings(tmp_path, ModelShape(vocabulary=8))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    template = jinja2.Template(settings["chat_template"])

    def fill(messages: list[dict[str, str]], *, generate: bool) -> str:
        filled: str = template.render(
            messages=messages,
            add_generation_prompt=generate,
            bos_token=settings["bos_token"],
            eos_token=settings["eos_token"],
        )
        return filled

    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": " Hi "},
        {"role": "assistant", "content": "Hello!"},
    ]
    assert fill(messages, generate=False) == render([Exchange("Hi", "Hello!")], "Be kind.")
    opened = fill([*messages, {"role": "user", "content": "Bye"}], generate=True)
    assert opened.endswith("Hello!<|eos|><|user|>Bye<|assistant|>")


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


def test_the_prompts_are_different_and_counted(generator: Generator) -> None:
    scores = evaluation.evaluate(generator, prompts=4)
    assert [score.asked for score in scores] == [4, 4, 4, 4]
    # A model of random weights is refused: the evaluation can fail.
    assert not any(score.passed for score in scores)
    assert all(len(set(score.wrong)) == 4 for score in scores)
