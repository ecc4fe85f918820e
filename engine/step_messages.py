"""Messages between an engine core and its workers: one step as differences, and its result.

The worker keeps each row's tokens and block table; the engine core keeps the truth and can send it
again as a new row. A *row* is the worker's place for one request, chosen by the engine core and
free again once a step has named it in `finished`.

Every message has the *pool number* of the workers that it is to or from: how often they have been
replaced. It is set and checked where messages enter and leave the rings.
"""

import enum

import attrs

from ..transports.codec import Codec, CodecLimits
from .config import EngineSettings
from .sampling_params import DistributionParams

# Why a row fails.
NOT_NUMBERS = "a logit is not a finite number"
ALL_FORBIDDEN = "every token is forbidden"


# Classes made for each step or request are not frozen, though none is changed: a frozen class takes
# three times as long to make.
@attrs.define(kw_only=True)
class RowSampling(DistributionParams):
    """Sampling parameters of a row; a token is a pure function of this, logits, tokens.

    Of the numbers that both have, `DistributionParams`, none is left open here. Ids in
    `suppressed_until_min` get probability 0 while fewer than `min_tokens` were sampled.
    `allowed_token_ids`, if there are any, forbid all others. The last token of a sequence in
    `bad_words` is forbidden where the rest was just sampled. `logprobs` asks for so many of the
    most likely tokens beside the one sampled (0: it alone, None: nothing), and `prompt_logprobs`
    the same for each token of the prompt but the first. What is done in which order is in
    `worker/torch/sampler.py`.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float = 1.0
    seed: int
    choice: int = 0
    min_tokens: int = 0
    suppressed_until_min: list[int] = attrs.field(factory=list)
    logit_bias: list[tuple[int, float]] = attrs.field(factory=list)
    allowed_token_ids: list[int] = attrs.field(factory=list)
    bad_words: list[list[int]] = attrs.field(factory=list)
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@attrs.define(kw_only=True)
class NewRow:
    """A request that a worker does not hold yet: first scheduled, resumed or preempted before.

    `token_ids` are prompt and output so far; the first `prompt_tokens` of them are the prompt. The
    first `computed_tokens` of them are in the KV blocks already. If `is_embedded`, the prompt's ids
    are placeholders: each step that computes some of it brings their `RowEmbeds`.
    """

    row: int
    token_ids: list[int]
    prompt_tokens: int
    computed_tokens: int
    block_ids: list[int]
    sampling: RowSampling
    is_embedded: bool = False


@attrs.frozen
class RowEmbeds:
    """Embeddings of the row's next tokens, in order, which the first layer reads.

    `data` is (tokens, hidden size) of `dtype`, float32 or bfloat16, row-major, little endian.
    """

    row: int
    dtype: str
    data: bytes


@attrs.define(kw_only=True)
class Step:
    """Step for a worker, in this order: forget `finished`, take `new`, append `grown`, compute.

    `rows[i]` computes its next `token_counts[i]` tokens (the input of a decode row is the token
    that the worker sampled itself); `samples[i]` says whether the row then samples one. For rows
    in `masked` a `Mask` of the same number follows and is awaited before sampling. `embeds` are of
    the prompt tokens that it computes, for each row that `is_embedded`.
    """

    number: int
    finished: list[int] = attrs.field(factory=list)
    new: list[NewRow] = attrs.field(factory=list)
    grown: list[tuple[int, list[int]]] = attrs.field(factory=list)  # (row, appended block ids)
    rows: list[int] = attrs.field(factory=list)
    token_counts: list[int] = attrs.field(factory=list)
    samples: list[bool] = attrs.field(factory=list)
    masked: list[int] = attrs.field(factory=list)
    embeds: list[RowEmbeds] = attrs.field(factory=list)
    pool_number: int = 0


@attrs.define
class Mask:
    """Allowed tokens of the rows in `Step.masked`, in that order: 32 token ids a word, low first.

    `words` is int32, len(masked) × ceil(vocab / 32), row-major.
    """

    number: int
    words: bytes
    pool_number: int = 0


@attrs.frozen(kw_only=True)
class RowLogprobs:
    """Logprobs of successive tokens of one row, the first of which is token `first` of the row.

    Of the logits as the model gave them, before any parameter. One position for a sampled token;
    for a prompt as many as the step computed, of tokens that the prompt has: computing tokens
    [a, b) gives those of tokens a + 1 to b. Arrays are little endian, position-major: `width`
    columns of `token_ids` (int32) and `logprobs` (float32), the token of that position first, then
    the most likely ones in order, of equals the lower id; `ranks` (int32) is one a position: the
    place of the position's token in that order, 1 for the most likely one.
    """

    row: int
    first: int
    width: int
    token_ids: bytes
    logprobs: bytes
    ranks: bytes


@attrs.define
class StepResult:
    """Tokens that step `number` sampled: `token_ids[i]` is of `rows[i]`. From the output rank.

    Of the `compute_s` seconds that the step took, the last `sample_s` were sampling, where the
    executor measures them apart.

    `failed_rows` are (row, reason): rows that were to sample, but whose logits (of this token, or
    of a prompt that is scored) are no numbers, or of which nothing may be sampled. Such a row is
    not in `rows` and its request cannot go on; the others are unharmed. The worker holds it until
    a step names it in `finished`, and what later steps say of it is void.
    """

    number: int
    rows: list[int]
    token_ids: list[int]
    compute_s: float = 0.0
    logprobs: list[RowLogprobs] = attrs.field(factory=list)
    failed_rows: list[tuple[int, str]] = attrs.field(factory=list)
    sample_s: float = 0.0
    pool_number: int = 0


@attrs.define
class StepFailure:
    """A worker raised in step `number`; every rank reports this."""

    number: int
    rank: int
    traceback: str
    pool_number: int = 0


@attrs.frozen(kw_only=True)
class WorkerInit:
    """INIT's payload for a worker; memfd and eventfds of the rings travel beside it."""

    rank: int
    epoch: int
    settings: EngineSettings
    pool_number: int = 0


class KVMemory(enum.StrEnum):
    """Whose memory a worker's keys and values are in."""

    OWN = "own"  # it ends with the worker
    FRESH = "fresh"  # it outlives the worker, and was empty
    FOUND = "found"  # it outlives the worker, and has what the last one wrote


@attrs.frozen(kw_only=True)
class WorkerReady:
    """READY's payload of a worker: what the engine core plans with.

    `hidden_size` 0: it takes no `RowEmbeds`.
    """

    kv_blocks: int
    max_model_len: int
    vocab_size: int
    numerics_id: str
    bitwise: bool
    hidden_size: int = 0
    kv_memory: KVMemory = KVMemory.OWN


CORE_TO_WORKER = (Step, Mask)
# Limits of a step and its results, embeddings and logprobs of prompts included.
STEP_LIMITS = CodecLimits(bytes_max=256 * 2**20)
WORKER_TO_CORE = (StepResult, StepFailure)
# The rank whose tokens count; with pipeline ranks it would be the last stage's first.
OUTPUT_RANK = 0


def make_ring_codecs() -> tuple[Codec, Codec]:
    """Codecs of the steps' ring and of the results', the same on both sides."""
    return Codec(*CORE_TO_WORKER, limits=STEP_LIMITS), Codec(*WORKER_TO_CORE, limits=STEP_LIMITS)
