"""Inputs of one step, as a worker's runner gets them: what is computed, and for whom.

Sans-IO: plain values, which `input_batch` makes of a step's differences.
"""

import attrs

from ..step_messages import RowSampling


@attrs.define
class Sampling:
    """A row that samples in this step, from the logits of the step's token `token_index`.

    A value, never changed; not frozen because one is made per row and step.
    """

    row: int
    token_index: int
    parameters: RowSampling
    position: int


@attrs.frozen
class PromptSpan:
    """Successive tokens of a step whose logits are those of the prompt's next tokens.

    `targets[i]` follows the step's token `token_index + i`; the first of them is token `first` of
    the row. With each goes its logprob and those of so many `alternatives`.
    """

    row: int
    token_index: int
    first: int
    targets: list[int]
    alternatives: int


@attrs.frozen
class EmbedSpan:
    """Successive tokens of a step, from `token_index` on, whose embeddings are given.

    `data` is (tokens, hidden size) of `dtype`, as in `RowEmbeds`.
    """

    token_index: int
    dtype: str
    data: bytes


@attrs.frozen
class StepInputs:
    """The tokens that one step computes, row after row, who samples, and whose prompt is scored.

    Ids of the tokens in `embeds` are placeholders.
    """

    token_ids: list[int]
    positions: list[int]
    rows: list[int]  # of each token
    samplings: list[Sampling]
    prompt_spans: list[PromptSpan]
    embeds: list[EmbedSpan] = attrs.field(factory=list)

    def sampled_rows(self) -> list[int]:
        """The rows that sample, in their order."""
        return [sampling.row for sampling in self.samplings]
