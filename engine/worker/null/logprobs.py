"""Logprobs of the null executor: a hash of the token's index and its id, the same wherever it runs.

Nobody's probabilities, but each token's own, so that one that is missing, repeated or of another
token shows. Must not import torch.
"""

import struct
from collections.abc import Sequence

from ...step_messages import RowLogprobs, StepResult
from ..input_batch import StepInputs


def null_logprob(index: int, token_id: int) -> float:
    """Of token `token_id` at index `index` of its row; a multiple of 1/16, exact in float32."""
    return -((index * 31 + token_id * 7) % 512 + 1) / 16


def null_rows(
    row: int, first: int, token_ids: Sequence[int], alternatives: int, *, vocab_size: int
) -> RowLogprobs:
    """Successive tokens of a row; their alternatives are the ids that follow them."""
    alternatives = min(alternatives, vocab_size)
    ids, values, ranks = [], [], []
    for index, token_id in enumerate(token_ids, first):
        for column in [0, *range(alternatives)]:
            ids.append((token_id + column) % vocab_size)
            values.append(null_logprob(index, ids[-1]))
        ranks.append(1 + index % 5)
    return RowLogprobs(
        row=row,
        first=first,
        width=1 + alternatives,
        token_ids=struct.pack(f"<{len(ids)}i", *ids),
        logprobs=struct.pack(f"<{len(ids)}f", *values),
        ranks=struct.pack(f"<{len(ranks)}i", *ranks),
    )


def with_null_logprobs(
    result: StepResult, inputs: StepInputs, lengths: dict[int, int], vocab_size: int
) -> StepResult:
    """The result with what its rows asked for; `lengths` are theirs before they sampled."""
    for span in inputs.prompt_spans:
        result.logprobs.append(
            null_rows(span.row, span.first, span.targets, span.alternatives, vocab_size=vocab_size)
        )
    for sampling, token_id in zip(inputs.samplings, result.token_ids, strict=True):
        if sampling.parameters.logprobs is not None:
            first, count = lengths[sampling.row], sampling.parameters.logprobs
            result.logprobs.append(
                null_rows(sampling.row, first, [token_id], count, vocab_size=vocab_size)
            )
    return result
