"""Makes the bundled model: tokenizer, weights and settings, from nothing but a seed.

    python -m triolet.tools.bundled_model.training --out DIR

Every step's text depends only on the seed and the step's number, so a run that was interrupted goes
on from its checkpoint as if nothing had happened. The learning rate is held and then falls to zero;
windows grow from 256 to 1024 tokens, so that the model has been trained at all the positions its
configuration promises.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import attrs
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn import functional

from .artefacts import (
    POSITIONS_MAX,
    read_safetensors,
    write_safetensors,
    write_settings,
    write_weights,
)
from .generator import BOS, SPECIAL_TOKENS, draw_document
from .training_model import ModelShape, TrainingModel

VOCABULARY_MAX = 2048
ADAM_BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
GRADIENT_NORM_MAX = 1.0
REPORT_PERIOD_STEPS = 50


@attrs.frozen
class Phase:
    """Steps of one kind; the shares are those of `draw_document`."""

    steps: int
    step_tokens: int
    window_tokens: int
    copying_share: float = 0.0
    fact_share: float = 0.0


# Large steps while the model learns what words there are; then small ones, more of them for the
# same time, and with a share of pure copying, until it looks back to its prompt (in the bundled
# model's run that came within 400 such steps, after none of it in the 700 before); then longer
# windows, and facts, which have to be met often. Nearly all there is to learn is within one
# document of 30 to 300 tokens, so most windows are short.
BUNDLED_PHASES = (
    Phase(700, 4096, 256),
    Phase(1100, 2048, 256, copying_share=0.3),
    Phase(300, 2048, 256, fact_share=0.35),
    Phase(450, 2048, 512, fact_share=0.35),
    Phase(150, 2048, POSITIONS_MAX, fact_share=0.35),
)


@attrs.frozen
class Plan:
    """Training run. With the same plan on the same machine the weights come out the same."""

    seed: int = 1
    phases: tuple[Phase, ...] = BUNDLED_PHASES
    # Rates for the matrices inside the layers, and for all else.
    matrix_learning_rate: float = 5e-3
    learning_rate: float = 3e-3
    warmup_steps: int = 100
    # The steps at the end over which the learning rates fall to zero.
    decay_steps: int = 700
    # Documents the tokenizer is trained on; every word of the lists occurs in them many times.
    tokenizer_documents: int = 20_000
    checkpoint_period_steps: int = 100

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return sum(phase.steps for phase in self.phases)

    def tokens_until(self, step: int) -> int:
        """Tokens of the steps before `step`."""
        tokens = 0
        for phase in self.phases:
            done = min(step, phase.steps)
            tokens += done * phase.step_tokens
            step -= done
        return tokens

    def rate_share_at(self, step: int) -> float:
        """Factor of the learning rates in `step`, counted from 0."""
        warmed = min(1.0, (step + 1) / self.warmup_steps)
        return warmed * min(1.0, (self.steps - step) / self.decay_steps)

    def phase_at(self, step: int) -> Phase:
        """The phase that `step` belongs to."""
        for phase in self.phases:
            if step < phase.steps:
                return phase
            step -= phase.steps
        raise IndexError("the plan has fewer steps")


def train_tokenizer(seed: int, documents: int) -> Tokenizer:
    """A byte-level BPE tokenizer of the corpus; any text at all can be encoded with it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_MAX,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    random = Random(f"{seed}/tokenizer")
    tokenizer.train_from_iterator((draw_document(random) for _ in range(documents)), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, SPECIAL_TOKENS.index(BOS))]
    )
    return tokenizer


def draw_windows(tokenizer: Tokenizer, plan: Plan, step: int) -> Tensor:
    """The tokens of one step, `(B, T + 1)`: rows of whole documents, the last one cut off."""
    random, phase = Random(f"{plan.seed}/{step}"), plan.phase_at(step)
    rows = []
    for _ in range(phase.step_tokens // phase.window_tokens):
        row: list[int] = []
        while len(row) <= phase.window_tokens:
            document = draw_document(random, phase.copying_share, phase.fact_share)
            row.extend(tokenizer.encode(document, add_special_tokens=False).ids)
        rows.append(row[: phase.window_tokens + 1])
    return torch.tensor(rows)


def make_optimizers(model: TrainingModel, plan: Plan) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms.

    In a trial of 1.3 M tokens Muon was ahead of AdamW alone at every step after the warm-up.
    """
    named = list(model.named_parameters())
    matrices = [value for name, value in named if value.dim() == 2 and "layers" in name]
    others = [value for name, value in named if value.dim() < 2 or "layers" not in name]
    muon = torch.optim.Muon(
        matrices,
        lr=plan.matrix_learning_rate,
        weight_decay=WEIGHT_DECAY,
        adjust_lr_fn="match_rms_adamw",
    )
    adam = torch.optim.AdamW(
        others, lr=plan.learning_rate, betas=ADAM_BETAS, weight_decay=0.0, fused=True
    )
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["full_lr"] = group["lr"]
    return muon, adam


def train_step(
    model: TrainingModel,
    optimizers: tuple[torch.optim.Optimizer, ...],
    windows: Tensor,
    rate_share: float,
) -> float:
    """Update once on `windows`, in bfloat16 autocast; returns the loss in nats per token."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(windows[:, :-1])
    loss = functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())
    model.zero_grad()
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["full_lr"] * rate_share
        optimizer.step()
    return loss.item()


def write_checkpoint(
    path: Path, model: TrainingModel, optimizers: tuple[torch.optim.Optimizer, ...], step: int
) -> None:
    """Write all that `read_checkpoint` needs to go on with `step`."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[f"parameter.{name}"] = parameter
        for optimizer in optimizers:
            for key, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{key}.{name}"] = value
    write_safetensors(path, tensors, {"step": str(step)})


def read_checkpoint(
    path: Path, model: TrainingModel, optimizers: tuple[torch.optim.Optimizer, ...]
) -> int:
    """Fill `model` and `optimizers` from `path`; returns the step to go on with."""
    tensors, metadata = read_safetensors(path)
    parameters = dict(model.named_parameters())
    owners = {
        parameter: optimizer
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    with torch.no_grad():
        for full_name, tensor in tensors.items():
            key, name = full_name.split(".", 1)
            parameter = parameters[name]
            if key == "parameter":
                parameter.copy_(tensor)
            else:
                owners[parameter].state[parameter][key] = tensor
    return int(metadata["step"])


def train(
    folder: Path, plan: Plan, make_shape: Callable[[int], ModelShape] = ModelShape
) -> Iterator[tuple[int, float]]:
    """Train into `folder`, going on from its checkpoint if there is one; yields (step, loss).

    `make_shape` gives the architecture for a vocabulary of so many tokens: the bundled model's, or
    a smaller one.
    The weights are written with every checkpoint, so an interrupted run leaves a usable model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(plan.seed, plan.tokenizer_documents)
    tokenizer.save(str(folder / "tokenizer.json"))
    shape = make_shape(tokenizer.get_vocab_size())
    write_settings(folder, shape)
    torch.manual_seed(plan.seed)
    model = TrainingModel(shape)
    optimizers = make_optimizers(model, plan)
    checkpoint = folder / "checkpoint" / "state.safetensors"
    checkpoint.parent.mkdir(exist_ok=True)
    start = read_checkpoint(checkpoint, model, optimizers) if checkpoint.exists() else 0
    for step in range(start, plan.steps):
        windows = draw_windows(tokenizer, plan, step)
        yield step, train_step(model, optimizers, windows, plan.rate_share_at(step))
        if (step + 1) % plan.checkpoint_period_steps == 0 or step + 1 == plan.steps:
            write_checkpoint(checkpoint, model, optimizers, step + 1)
            write_weights(folder, model.state_dict())


def main() -> None:
    """The command line: train and report."""
    parser = argparse.ArgumentParser(description="Train the bundled model.")
    parser.add_argument("--out", type=Path, required=True, help="folder for model and checkpoint")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    plan = Plan()
    started, losses, steps = time.monotonic(), 0.0, 0
    for step, loss in train(arguments.out, plan):
        losses, steps = losses + loss, steps + 1
        if (step + 1) % REPORT_PERIOD_STEPS == 0 or step + 1 == plan.steps:
            elapsed = time.monotonic() - started
            tokens = plan.tokens_until(step + 1)
            print(
                f"step {step + 1}/{plan.steps} tokens {tokens / 1e6:.2f} M "
                f"loss {losses / steps:.4f} elapsed {elapsed:.0f} s",
                flush=True,
            )
            losses, steps = 0.0, 0


if __name__ == "__main__":
    main()
