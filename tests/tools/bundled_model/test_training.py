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
from triolet.tools.bundled_model.evaluation import Generator
from triolet.tools.bundled_model.generator import (
    Exchange,
    render,
)
from triolet.tools.bundled_model.training import Phase, Plan, train_tokenizer
from triolet.tools.bundled_model.training_model import ModelShape, TrainingModel

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


@pytest.fixture(scope="module")
def generator() -> Generator:
    torch.manual_seed(0)
    tokenizer: Tokenizer = train_tokenizer(0, documents=60)
    shape = ModelShape(tokenizer.get_vocab_size(), hidden=16, head_channels=4, intermediate=24)
    return Generator(TrainingModel(shape).eval(), tokenizer, answer_tokens_max=12)


def test_the_prompts_are_different_and_counted(generator: Generator) -> None:
    scores = evaluation.evaluate(generator, prompts=4)
    assert [score.asked for score in scores] == [4, 4, 4, 4]
    # A model of random weights is refused: the evaluation can fail.
    assert not any(score.passed for score in scores)
    assert all(len(set(score.wrong)) == 4 for score in scores)
