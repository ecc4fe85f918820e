"""Messages between an engine core and its workers: one step as differences, and its result.

The worker keeps each row's tokens and block table; the engine core keeps the truth and can send it
again as a new row. A *row* is the worker's place for one request, chosen by the engine core and
free again once a step has named it in `finished`. Must not know rings, processes or torch.
"""

import attrs

from .config import EngineSettings


@attrs.frozen(kw_only=True)
class RowSampling:
    """What the sampler needs of a request; a token is a pure function of this, logits, position.

    Ids in `suppressed_until_min` get probability 0 while fewer than `min_tokens` were sampled.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    choice: int = 0
    min_tokens: int = 0
    suppressed_until_min: list[int] = attrs.field(factory=list)


@attrs.frozen(kw_only=True)
class NewRow:
    """A request that a worker does not hold yet: first scheduled, resumed or preempted before.

    `token_ids` are prompt and output so far; the first `prompt_tokens` of them are the prompt. The
    first `computed_tokens` of them are in the KV blocks already.
    """

    row: int
    token_ids: list[int]
    prompt_tokens: int
    computed_tokens: int
    block_ids: list[int]
    sampling: RowSampling


@attrs.frozen(kw_only=True)
class Step:
    """One step. Order for the worker: forget `finished`, take `new`, append `grown`, compute.

    `rows[i]` computes its next `token_counts[i]` tokens (the input of a decode row is the token
    that the worker sampled itself); `samples[i]` says whether the row then samples one. For rows
    in `masked` a `Mask` of the same number follows and is awaited before sampling.
    """

    number: int
    finished: list[int] = attrs.field(factory=list)
    new: list[NewRow] = attrs.field(factory=list)
    grown: list[tuple[int, list[int]]] = attrs.field(factory=list)  # (row, appended block ids)
    rows: list[int] = attrs.field(factory=list)
    token_counts: list[int] = attrs.field(factory=list)
    samples: list[bool] = attrs.field(factory=list)
    masked: list[int] = attrs.field(factory=list)


@attrs.frozen
class Mask:
    """Allowed tokens of the rows in `Step.masked`, in that order: 32 token ids a word, low first.

    `words` is int32, len(masked) × ceil(vocab / 32), row-major.
    """

    number: int
    words: bytes


@attrs.frozen
class StepResult:
    """Tokens that step `number` sampled: `token_ids[i]` is of `rows[i]`. From the output rank."""

    number: int
    rows: list[int]
    token_ids: list[int]
    compute_s: float = 0.0


@attrs.frozen
class StepFailure:
    """A worker raised in step `number`; every rank reports this."""

    number: int
    rank: int
    traceback: str


@attrs.frozen(kw_only=True)
class WorkerInit:
    """INIT's payload for a worker; memfd and eventfds of the rings travel beside it."""

    rank: int
    epoch: int
    settings: EngineSettings


@attrs.frozen(kw_only=True)
class WorkerReady:
    """READY's payload of a worker: what the engine core plans with."""

    kv_blocks: int
    max_model_len: int
    vocab_size: int
    numerics_id: str
    bitwise: bool


CORE_TO_WORKER = (Step, Mask)
WORKER_TO_CORE = (StepResult, StepFailure)
# The rank whose tokens count; with pipeline ranks it would be the last stage's first.
OUTPUT_RANK = 0
