"""What any executor thinks of given tokens: asked as a prompt, through the interface that all have.

A prompt's logprobs, with the whole vocabulary for alternatives, are its logits up to a constant of
each position. Nothing here knows how an executor computes.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from triolet.engine.config import EngineSettings
from triolet.engine.step_messages import NewRow, RowLogprobs, RowSampling, Step
from triolet.engine.worker.executor_interface import WorkerExecutor
from triolet.engine.worker.executors import make_executor

Array = NDArray[np.float64]
BLOCK_TOKENS = 16


@attrs.define(eq=False)
class Scorer:
    """One loaded executor that computes one prompt at a time, in steps of `chunk` tokens."""

    executor: WorkerExecutor
    chunk: int
    _number: int = attrs.field(default=0, init=False)

    @classmethod
    def of(
        cls, folder: pathlib.Path, executor: Mapping[str, Any], *, length: int, chunk: int
    ) -> "Scorer":
        """Load `folder` for prompts of at most `length` tokens; `executor` are settings."""
        settings = EngineSettings(
            model=str(folder),
            max_num_seqs=1,
            max_num_batched_tokens=chunk,
            kv_blocks=-(-length // BLOCK_TOKENS),
            block_tokens=BLOCK_TOKENS,
            **executor,
        )
        made = make_executor(settings, 0, lambda seconds: None)
        made.load(lambda phase, fraction: None)
        return cls(made, chunk)

    def logits(self, tokens: Sequence[int], vocabulary: int) -> Array:
        """Logits of all tokens but the last, each row's mean taken off: (len - 1, vocabulary)."""
        rows = []
        for found in self._score(tokens, vocabulary):
            ids = np.frombuffer(found.token_ids, np.int32).reshape(-1, found.width)
            values = np.frombuffer(found.logprobs, np.float32).reshape(-1, found.width)
            row = np.full((len(ids), vocabulary), np.nan)
            np.put_along_axis(row, ids.astype(np.int64), values.astype(np.float64), axis=1)
            rows.append(row)
        return centred(np.concatenate(rows))

    def nats(self, tokens: Sequence[int]) -> float:
        """Minus the sum of the logprobs of all tokens but the first."""
        own = [
            np.frombuffer(found.logprobs, np.float32).reshape(-1, found.width)[:, 0]
            for found in self._score(tokens, 0)
        ]
        return -float(np.concatenate(own).astype(np.float64).sum())

    def _score(self, tokens: Sequence[int], alternatives: int) -> list[RowLogprobs]:
        sampling = RowSampling(
            temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, prompt_logprobs=alternatives
        )
        row = NewRow(
            row=0,
            token_ids=list(tokens),
            prompt_tokens=len(tokens),
            computed_tokens=0,
            block_ids=list(range(-(-len(tokens) // BLOCK_TOKENS))),
            sampling=sampling,
        )
        found: list[RowLogprobs] = []
        for begin in range(0, len(tokens), self.chunk):
            count = min(self.chunk, len(tokens) - begin)
            found += self._run(
                new=[] if begin else [row], rows=[0], token_counts=[count], samples=[False]
            )
        self._run(finished=[0])
        return found

    def _run(self, **step: Any) -> list[RowLogprobs]:
        self._number += 1
        result = self.executor.execute(Step(number=self._number, **step), _no_mask)
        assert not result.failed_rows, result.failed_rows
        return result.logprobs


def _no_mask() -> Any:
    raise AssertionError("no row is masked")


def centred(logits: Array) -> Array:
    """Each row less its mean: what is left does not depend on how rows were normalized."""
    centre: Array = logits - logits.mean(axis=1, keepdims=True)
    return centre
