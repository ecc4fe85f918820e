"""The bundled model: a small training to a whole folder, and the evaluation of answers."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import jinja2
import pytest
from tokenizers import Tokenizer

from triolet.engine.model.bundled import bundled_model_folder
from triolet.tools.bundled_model import evaluation, training
from triolet.tools.bundled_model.evaluation import Answer
from triolet.tools.bundled_model.generator import (
    Exchange,
    render,
)
from triolet.tools.bundled_model.training import Phase, Plan
from triolet.tools.bundled_model.words import CAPITALS

PLAN = Plan(
    phases=(Phase(3, 64, 32, copying_share=0.5), Phase(3, 64, 64)), warmup_steps=1, decay_steps=3
)
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "head_dim": 4,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return training.train_tokenizer(0, documents=60)


def test_any_text_survives_the_tokenizer(tokenizer: Tokenizer) -> None:
    for text in ("Ruby the owl", "naïve — 東京 🦉", "  two\n\nlines  ", "<|user|>Hi<|assistant|>"):
        encoded = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text


@pytest.mark.slow
def test_steps_lower_the_loss_and_repeat_exactly(tokenizer: Tokenizer) -> None:
    def run() -> list[float]:
        model = training.make_model(0, vocab_size=tokenizer.get_vocab_size(), **SIZES)
        optimizers = training.make_optimizers(model, PLAN)
        windows = training.draw_windows(tokenizer, PLAN, 0)
        return [training.train_step(model, optimizers, windows, 1.0) for _ in range(3)]

    losses = run()
    assert losses[0] > losses[1] > losses[2]
    assert losses == run()


def test_a_run_leaves_a_whole_model_folder(tmp_path: Path) -> None:
    plan = attrs.evolve(PLAN, tokenizer_documents=60, checkpoint_period_steps=2)
    run = training.train(tmp_path, plan, **SIZES)
    stopped = [next(run) for _ in range(4)]
    assert [step for step, _ in stopped] == [0, 1, 2, 3]
    # Stopped before its fourth step was written, so a second run goes on after the second.
    resumed = list(training.train(tmp_path, plan, **SIZES))
    assert resumed[:2] == stopped[2:]
    assert [step for step, _ in resumed] == [2, 3, 4, 5]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        *("config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json", "checkpoint"),
    }


def test_the_chat_template_is_what_training_saw() -> None:
    settings = json.loads((Path(bundled_model_folder()) / "tokenizer_config.json").read_text())
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


def test_a_model_that_answers_wrongly_is_refused() -> None:
    asked: list[list[str]] = []

    def answer(prompts: list[str], temperature: float) -> list[Answer]:
        asked.append(prompts)
        return [Answer("I do not know.", ended=True) for _ in prompts]

    scores = evaluation.evaluate(answer, prompts=4)
    assert [score.asked for score in scores] == [len(set(prompts)) for prompts in asked] == [4] * 4
    assert not any(score.passed for score in scores)
    assert all(len(set(score.wrong)) == 4 for score in scores)


def test_a_capital_alone_in_an_answer_that_ended_is_right() -> None:
    asked = ("What is the capital of Peru?", "Peru")
    for answer, right in (
        (Answer("The capital of Peru is Lima.", ended=True), True),
        (Answer("The capital of Peru is Lima", ended=False), False),
        (Answer("The capital of Peru is Lima or Quito.", ended=True), False),
    ):
        assert evaluation.capital_is_right(asked, answer) is right
    assert CAPITALS["Peru"] == "Lima"
