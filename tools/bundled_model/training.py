"""Makes the bundled model: tokenizer, weights and settings, from nothing but a seed.

    python -m triolet.tools.bundled_model.training --out DIR

Every step's text depends only on the seed and the step's number, so a run that was interrupted goes
on from its checkpoint as if nothing had happened. The learning rate is held and then falls to zero;
windows grow from 256 to 1024 tokens, so that the model has been trained at all the positions its
configuration promises.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import attrs
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from ...engine.model.bundled import bundled_model_folder
from .generator import BOS, SPECIAL_TOKENS, draw_document

# Architecture, chat template and recommended sampling: files that training copies.
SETTINGS = ("config.json", "tokenizer_config.json", "generation_config.json")
VOCABULARY_MAX = 2048
# The longest window; `config.json` promises as many positions.
POSITIONS_MAX = 1024
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


def make_model(seed: int, **sizes: Any) -> LlamaForCausalLM:
    """The bundled model's architecture, or a smaller one, with weights drawn from `seed`."""
    torch.manual_seed(seed)
    # Attention written out: at such windows torch's fused kernel trains a third slower on a CPU.
    config = LlamaConfig.from_pretrained(
        bundled_model_folder(), attn_implementation="eager", dtype="float32", **sizes
    )
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            # Blocks write into one residual stream; the more layers, the smaller each one's share.
            writes_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            share = 1 / math.sqrt(2 * config.num_hidden_layers) if writes_residual else 1.0
            nn.init.normal_(parameter, std=config.initializer_range * share)
    return model


def make_optimizers(model: LlamaForCausalLM, plan: Plan) -> tuple[torch.optim.Optimizer, ...]:
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
    model: LlamaForCausalLM,
    optimizers: tuple[torch.optim.Optimizer, ...],
    windows: Tensor,
    rate_share: float,
) -> float:
    """Update once on `windows`, in bfloat16 autocast; returns the loss in nats per token."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(windows[:, :-1], use_cache=False).logits
    loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())
    model.zero_grad()
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["full_lr"] * rate_share
        optimizer.step()
    return loss.item()


def train(folder: Path, plan: Plan, **sizes: Any) -> Iterator[tuple[int, float]]:
    """Train into `folder`, going on from its checkpoint if there is one; yields (step, loss).

    `sizes` are those of `config.json` that are not to be the bundled model's. The weights are
    written with every checkpoint, so an interrupted run leaves a usable model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(plan.seed, plan.tokenizer_documents)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name in SETTINGS:
        shutil.copy(Path(bundled_model_folder()) / name, folder)
    model = make_model(plan.seed, vocab_size=tokenizer.get_vocab_size(), **sizes)
    optimizers = make_optimizers(model, plan)
    checkpoint, start = folder / "checkpoint", 0
    if checkpoint.exists():
        start, weights, *states = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(weights)
        for optimizer, state in zip(optimizers, states, strict=True):
            optimizer.load_state_dict(state)
    for step in range(start, plan.steps):
        windows = draw_windows(tokenizer, plan, step)
        yield step, train_step(model, optimizers, windows, plan.rate_share_at(step))
        if (step + 1) % plan.checkpoint_period_steps == 0 or step + 1 == plan.steps:
            unfinished = folder / "checkpoint.unfinished"
            states = [optimizer.state_dict() for optimizer in optimizers]
            torch.save([step + 1, model.state_dict(), *states], unfinished)
            unfinished.replace(checkpoint)
            # In the precision that it is served in; the head is the embedding.
            weights = {name: value.to(torch.bfloat16) for name, value in model.named_parameters()}
            save_file(weights, folder / "model.safetensors", {"format": "pt"})


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
