"""Steps and sizes that the tests of executors share."""

import json
import pathlib

from triolet.engine.step_messages import NewRow, RowSampling, Step
from triolet.engine.worker.null.executor import null_token

VOCAB_SIZE = 100
# Its ids make a step of more than a slot: two or three bytes each.
LONG_PROMPT_TOKENS = 200_000
SEED = 7


def write_sizes(folder: pathlib.Path, **acts: str) -> pathlib.Path:
    """A model folder for the null executor; `rank_1="die"` is for `children/acting_worker`."""
    sizes = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": LONG_PROMPT_TOKENS + 100}
    (folder / "config.json").write_text(json.dumps(sizes))
    by_rank = {name.removeprefix("rank_"): act for name, act in acts.items()}
    (folder / "acts.json").write_text(json.dumps(by_rank))
    return folder


def first_step(number: int = 1, *, row: int = 0, prompt: list[int] | None = None) -> Step:
    """A new row that computes its whole prompt and samples."""
    token_ids = [9, 8] if prompt is None else prompt
    new = NewRow(
        row=row,
        token_ids=token_ids,
        prompt_tokens=len(token_ids),
        computed_tokens=0,
        block_ids=list(range(-(-len(token_ids) // 16))),
        sampling=RowSampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=SEED),
    )
    return Step(number=number, new=[new], rows=[row], token_counts=[len(token_ids)], samples=[True])


def next_step(number: int, *, row: int = 0) -> Step:
    """The same row once more."""
    return Step(number=number, rows=[row], token_counts=[1], samples=[True])


def expected_token(position: int, previous: int) -> int:
    """What the null executor samples."""
    return null_token(SEED, position, previous, vocab_size=VOCAB_SIZE)
