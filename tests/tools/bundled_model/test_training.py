"""Training in miniature: it learns, it repeats itself exactly, and it goes on where it stopped."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import torch
from tokenizers import Tokenizer

from triolet.tools.bundled_model import training
from triolet.tools.bundled_model.generator import SPECIAL_TOKENS
from triolet.tools.bundled_model.training import Phase, Plan
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
