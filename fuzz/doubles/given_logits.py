"""Runners of both executors over a model whose logits are given: what samples, and nothing else.

A step's logits are taken in the order of its tokens, so that prompts can be scored, too. What the
runners are made of (tables, batch, sampler, logprobs) is the workers' own.
"""

from collections.abc import Callable, Sequence
from ctypes import CDLL, byref
from types import SimpleNamespace
from typing import Any, Protocol, cast

import attrs
import numpy
from numpy.typing import NDArray

from ...engine.kernels.binding import StepBatch, declare_functions
from ...engine.kernels.library import machine_isas, native_fault, open_library
from ...engine.kernels.model import ForwardStep, Integers, NativeModel, PreparedStep
from ...engine.kernels.sampler import STRIDE, SampleCall
from ...engine.step_messages import Mask, Step, StepResult
from ...engine.worker.native.runner import NativeRunner

Logits = NDArray[numpy.float32]
# Tokens of one row at most, all in one block.
LENGTH_MAX = 64
# Rows and tokens of prompts that are scored, of one step.
LOGIT_ROWS_MAX = 256
# Padding of a row of logits: no sampler may look at it.
PADDING = 1e30


class Runner(Protocol):
    """Runner of a worker, the same for each executor."""

    def run(self, step: Step, wait_mask: Callable[[], Mask]) -> StepResult:
        """Compute one step."""


@attrs.define(eq=False)
class GivenRunner:
    """A runner, and the place from which its model takes logits."""

    name: str
    runner: Runner
    model: "_Given"

    def run(self, step: Step, logits: Logits, mask: Mask | None) -> StepResult:
        """Run a step with these logits, of each of its tokens; times are left out of the result."""
        self.model.given = logits
        result = self.runner.run(step, lambda: cast(Mask, mask))
        return attrs.evolve(result, compute_s=0.0, sample_s=0.0)


@attrs.define(eq=False, kw_only=True)
class _Given:
    vocab_size: int
    given: Logits = attrs.field(factory=lambda: numpy.zeros((0, 0), numpy.float32))


@attrs.define(eq=False, kw_only=True)
class _NativeGiven(_Given):
    """Model with `NativeModel`'s logits: working memory, where a call may find them again."""

    functions: CDLL
    threads: int = 1
    logit_rows_max: int = LOGIT_ROWS_MAX
    _memory: Logits = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        width = -(-self.vocab_size // STRIDE) * STRIDE
        self._memory = numpy.empty((self.logit_rows_max, width), numpy.float32)

    @property
    def config(self) -> Any:
        return SimpleNamespace(vocab_size=self.vocab_size, hidden_size=0)

    def forward(self, step: ForwardStep) -> Logits:
        return self.compute(self.prepare(step))

    def prepare(self, step: ForwardStep) -> PreparedStep:
        batch = StepBatch(tokens=len(step.token_ids))
        return PreparedStep(step, batch, self._memory[: len(step.logit_tokens)])

    def compute(self, prepared: PreparedStep) -> Logits:
        prepared.logits[:] = PADDING
        prepared.logits[:, : self.vocab_size] = self.given[prepared.step.logit_tokens]
        return prepared.logits

    def compute_and_draw(self, prepared: PreparedStep, call: SampleCall, scratch: int) -> float:
        self.compute(prepared)
        self.functions.triolet_sample(byref(call), scratch)
        return 0.0

    def logits(self, step: ForwardStep, tokens: Integers) -> Logits:
        return self.forward(attrs.evolve(step, logit_tokens=tokens))


def native_runners(rows: int, vocab_size: int) -> list[GivenRunner]:
    """Make a runner for each instruction set that may run here; none without kernels."""
    isas = [isa for isa in machine_isas() if not native_fault(isa)]
    return [_native(isa, rows, vocab_size) for isa in isas]


def _native(isa: str, rows: int, vocab_size: int) -> GivenRunner:
    functions = declare_functions(open_library(isa))
    model = _NativeGiven(vocab_size=vocab_size, functions=functions)
    runner = NativeRunner.of(
        cast(NativeModel, model), rows=rows, blocks=1, block_tokens=LENGTH_MAX, length=LENGTH_MAX
    )
    return GivenRunner(isa, runner, model)


def torch_runner(rows: int, vocab_size: int) -> GivenRunner:
    """The readable one; torch is imported only here."""
    import torch

    from ...engine.model.attention import AttentionShape
    from ...engine.model.decoder import Decoder
    from ...engine.worker.torch.runner import ModelRunner

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
        vocab_size=vocab_size,
        config=SimpleNamespace(vocab_size=vocab_size, hidden_size=0, layers=1),
        dtype=torch.float32,
        device=torch.device("cpu"),
        attention_shape=AttentionShape(heads=1, kv_heads=1, size=16),
    )
    runner = ModelRunner.of(
        cast(Decoder, model), rows=rows, blocks=1, block_tokens=LENGTH_MAX, length=LENGTH_MAX
    )
    return GivenRunner("torch", runner, model)
