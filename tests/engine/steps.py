"""Steps and sizes that the tests of executors share."""

import json
import pathlib
from typing import Any

from triolet.engine.step_messages import Mask, NewRow, RowSampling, Step
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


def sampling(**changes: Any) -> RowSampling:
    """Parameters that draw from the logits as they are, but for `changes`."""
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": SEED}
    return RowSampling(**{**values, **changes})


def new_row(row: int, token_ids: list[int], block_ids: list[int], **changes: Any) -> NewRow:
    """A row whose tokens are all of its prompt, and none computed, but for `changes`."""
    values: dict[str, Any] = {
        "prompt_tokens": len(token_ids),
        "computed_tokens": 0,
        "sampling": sampling(),
    }
    return NewRow(row=row, token_ids=token_ids, block_ids=block_ids, **{**values, **changes})


def compute(number: int, *work: tuple[int, int, bool], **changes: Any) -> Step:
    """A step of (row, tokens, whether it samples)."""
    return Step(
        number=number,
        rows=[row for row, _, _ in work],
        token_counts=[count for _, count, _ in work],
        samples=[samples for _, _, samples in work],
        **changes,
    )


def first_step(number: int = 1, *, row: int = 0, prompt: list[int] | None = None) -> Step:
    """A new row that computes its whole prompt and samples."""
    token_ids = [9, 8] if prompt is None else prompt
    new = new_row(row, token_ids, list(range(-(-len(token_ids) // 16))))
    return compute(number, (row, len(token_ids), True), new=[new])


def next_step(number: int, *, row: int = 0) -> Step:
    """The same row once more."""
    return compute(number, (row, 1, True))


def no_mask() -> Mask:
    """Of a step that masks no row."""
    raise AssertionError("no row is masked")


def expected_token(position: int, previous: int) -> int:
    """What the null executor samples."""
    return null_token(SEED, position, previous, vocab_size=VOCAB_SIZE)
