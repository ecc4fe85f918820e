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
from triolet.engine.step_messages import RowLogprobs
from triolet.engine.worker.executor_interface import WorkerExecutor
from triolet.engine.worker.executors import make_executor
from triolet.tests.engine.steps import compute, new_row, no_mask, sampling

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
        blocks = list(range(-(-len(tokens) // BLOCK_TOKENS)))
        asked = sampling(temperature=0.0, prompt_logprobs=alternatives)
        row = new_row(0, list(tokens), blocks, sampling=asked)
        found: list[RowLogprobs] = []
        for begin in range(0, len(tokens), self.chunk):
            count = min(self.chunk, len(tokens) - begin)
            found += self._run((0, count, False), new=[] if begin else [row])
        self._run(finished=[0])
        return found

    def _run(self, *work: tuple[int, int, bool], **changes: Any) -> list[RowLogprobs]:
        self._number += 1
        result = self.executor.execute(compute(self._number, *work, **changes), no_mask)
        assert not result.failed_rows, result.failed_rows
        return result.logprobs


def centred(logits: Array) -> Array:
    """Each row less its mean: what is left does not depend on how rows were normalized."""
    centre: Array = logits - logits.mean(axis=1, keepdims=True)
    return centre
