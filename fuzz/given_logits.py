"""Runners of both executors over a model whose logits are given: what samples, and nothing else.

A step's logits are taken in the order of its tokens, so that prompts can be scored, too. What the
runners are made of (tables, batch, sampler, logprobs) is the workers' own. Must not know how logits
are drawn.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Protocol, cast

import attrs
import numpy
from numpy.typing import NDArray

from ..engine.native.library import machine_isas, native_fault, open_library
from ..engine.native.model import ForwardStep, Integers, NativeModel
from ..engine.native.sampler import STRIDE
from ..engine.step_messages import Mask, Step, StepResult
from ..engine.worker.native_runner import NativeRunner

Logits = NDArray[numpy.float32]
# Tokens of one row at most, all in one block.
LENGTH_MAX = 64
# What pads a row of logits: no sampler may look at it.
PADDING = 1e30


class Runner(Protocol):
    """What a worker has for each executor."""

    def run(self, step: Step, wait_mask: Callable[[], Mask]) -> StepResult:
        """Compute one step."""


@attrs.define(eq=False)
class GivenRunner:
    """A runner, and the place from which its model takes logits."""

    name: str
    runner: Runner
    model: "_Given"

    def run(self, step: Step, logits: Logits, mask: Mask | None) -> StepResult:
        """One step with these logits, of each of its tokens; times are left out of the result."""
        self.model.given = logits
        result = self.runner.run(step, lambda: cast(Mask, mask))
        return attrs.evolve(result, compute_s=0.0, sample_s=0.0)


@attrs.define(eq=False)
class _Given:
    vocab_size: int
    given: Logits = attrs.field(factory=lambda: numpy.zeros((0, 0), numpy.float32))


@attrs.define(eq=False)
class _NativeGiven(_Given):
    kernels: Any = None
    threads: int = 1
    logit_rows_max: int = 2**20

    @property
    def config(self) -> Any:
        return SimpleNamespace(vocab_size=self.vocab_size)

    def forward(self, step: ForwardStep) -> Logits:
        return self.logits(step, step.logit_tokens)

    def logits(self, step: ForwardStep, tokens: Integers) -> Logits:
        width = -(-self.vocab_size // STRIDE) * STRIDE
        padded = numpy.full((len(tokens), width), PADDING, numpy.float32)
        padded[:, : self.vocab_size] = self.given[tokens]
        return padded


def native_runners(rows: int, vocab_size: int) -> list[GivenRunner]:
    """One for each instruction set that may run here; none without kernels."""
    isas = [isa for isa in machine_isas() if not native_fault(isa)]
    return [_native(isa, rows, vocab_size) for isa in isas]


def _native(isa: str, rows: int, vocab_size: int) -> GivenRunner:
    kernels = SimpleNamespace(library=open_library(isa))
    model = _NativeGiven(vocab_size, kernels=kernels)
    runner = NativeRunner.of(
        cast(NativeModel, model), rows=rows, blocks=1, block_tokens=LENGTH_MAX, length=LENGTH_MAX
    )
    return GivenRunner(isa, runner, model)


def torch_runner(rows: int, vocab_size: int) -> GivenRunner:
    """The readable one; torch is imported only here."""
    import torch

    from ..engine.model.attention import AttentionShape
    from ..engine.worker.model_runner import ModelRunner

    @attrs.define(eq=False, kw_only=True)
    class TorchGiven(_Given):
        config: Any
        dtype: torch.dtype
        device: torch.device
        attention_shape: AttentionShape

        def plan_attention(
            self, block_tables: Any, rows: Sequence[int], positions: Sequence[int], **_: Any
        ) -> Any:
            return None

        def hidden(self, batch: Any, cache: Any) -> torch.Tensor:
            return torch.from_numpy(self.given)

        def logits(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            return hidden[tokens]

    model = TorchGiven(
        vocab_size,
        config=SimpleNamespace(vocab_size=vocab_size, layers=1),
        dtype=torch.float32,
        device=torch.device("cpu"),
        attention_shape=AttentionShape(heads=1, kv_heads=1, size=16),
    )
    runner = ModelRunner.of(model, rows=rows, blocks=1, block_tokens=LENGTH_MAX, length=LENGTH_MAX)
    return GivenRunner("torch", runner, model)
