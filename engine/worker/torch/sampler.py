"""Sampler: a token for each row of logits, a pure function of row, parameters, seed and position.

No generator state, no dependence on the batch: a request that is resumed elsewhere draws the same
tokens. What follows is the specification, exact to the bit; this file is the readable form of it
(torch, any device), `engine/kernels/sampler.cpp` the fast one. All arithmetic is IEEE, each
operation rounded by itself: float32 where nothing else is said, and `log` is `exact_log`.

1. A row fails if one of its logits is NaN or +inf. Logprobs (`logprobs.py`) are of these raw ones.
2. Edits, in this order. Forbid (the logit becomes -inf): what is not in `allowed_token_ids`, if
   there are any; what the row's mask forbids; the last token of each of `bad_words` whose other
   tokens are the output's last ones; `suppressed_until_min` while the output has fewer than
   `min_tokens`. Add `logit_bias`. Then, for each token of prompt or output, z / repetition_penalty
   where z > 0, else z · repetition_penalty; for each token that is c times in the output,
   (z - frequency_penalty · c) - presence_penalty. Parameters are rounded to float32 first.
3. With z the edited logits and m the largest: the row fails if m is -inf (all is forbidden) or
   +inf.
4. *Order*: by z, largest first; of equals (-0 and +0 are), the lowest id first.
5. Greedy, if the temperature is below 1e-5: the first in order.
6. y = (z - m) · (1 / temperature), so the largest is 0. Weight w = rint(float64(exp(y)) · 2**40),
   an integer, so that sums do not depend on their order. Here rint is to nearest, ties to even, and
   exp(y) = p · 2**n: with v = max(y, -64) it has n = rint(v · 1.44269504), then
   r = (v - n · 0.693359375) + n · 0.000212194440, then p by Horner from c6:
   p = (((((c6 · r + c5) · r + c4) · r + c3) · r + c2) · r + c1) · r + c0, ck = float32(1 / k!).
7. Filters keep a prefix of the order: top_k the first k (0: all); then top_p, below 1, of these
   with weights summing to W those before which the sum is less than
   max(1, trunc(float64(W) · top_p)); then min_p, above 0, those with y >= float32(log(min_p)).
8. Random bits: x = Philox4x32-10 with key (seed mod 2**32, seed div 2**32) and counter
   (16 · (id div 64) + id mod 16, position, choice, 0), word (id mod 64) div 16, for token `id`: so
   that a vector of 16 counters serves 64 neighbours.
9. Gumbel-max, in float64: u = (x + 0.5) · 2**-32; score = y + -log(-log(u)). The token kept with
   the largest score; of equals, the lowest id. Its distribution is the softmax of the kept y.

-log(-log(u)) is between -3.14 and 22.88: a token 27 below the largest never wins.

`position` is the index of the token in the output, 0 for the first. Letters: R rows, V vocabulary,
W tokens looked at by the filters.
"""

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import torch
from torch import Tensor

from ...step_messages import ALL_FORBIDDEN, NOT_NUMBERS, RowSampling
from ..numerics import GREEDY_BELOW, exact_log

# Weights are fixed-point numbers with 40 bits; 2**22 of them still fit a signed 64-bit sum.
WEIGHT_ONE = 2.0**40
# exp(y) needs no smaller y: its weight is 0 from -28.5 on, and 2**n must be a normal number.
EXP_LEAST = -64.0
LOG2_E = 1.44269504
# ln 2 in two parts, the first of so few bits that its product with n is exact.
LN_2_HIGH, LN_2_LOW = 0.693359375, -0.000212194440
EXP_SERIES = (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)
# The filters first look at so many of the largest logits; sorting all costs ten times as much.
FILTER_WIDTH = 1024
# Rows are done in groups of at most so many logits: bounds the int64 temporaries (8 MiB each; on a
# GPU, where launches cost more than memory, 128 MiB).
GROUP_LOGITS_MAX = 2**20
GPU_GROUP_LOGITS_MAX = 2**24
# Neighbours that one vector of counters serves, and counters in it.
TOKENS_PER_GROUP = 64
COUNTERS_PER_GROUP = 16
# Tokens below this cannot win; see the end of the specification.
HOPELESS = -27.0
# torch's logarithms are far closer than this to the specified ones, so only tokens that near to
# the best score are scored as specified: one, as a rule.
SCORE_TOLERANCE = 1e-6
ROUNDS = 10
# Philox: multipliers and the key's increments (golden ratio and sqrt(3) - 1, times 2**32).
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_LOW_32_BITS = 0xFFFFFFFF

Words4 = tuple[Tensor, Tensor, Tensor, Tensor]


@attrs.frozen
class SampledRow:
    """Row of logits: whose parameters, and which output token (its index) it is for.

    `seen` counts in the output each token of prompt and output (0: in the prompt alone);
    `forbidden` are the ids that min_tokens and bad words forbid at this position.
    """

    sampling: RowSampling
    position: int
    seen: Mapping[int, int] | None = None
    forbidden: Sequence[int] = ()

    @property
    def greedy(self) -> bool:
        """Whether the largest logit is taken as it is."""
        return self.sampling.temperature < GREEDY_BELOW


@attrs.frozen
class Sampled:
    """A token for each row; of a row in `failures` ({index: reason}) it means nothing."""

    token_ids: list[int]
    failures: dict[int, str]


def sample_tokens(
    logits_RV: Tensor, rows: Sequence[SampledRow], forbidden_RV: Tensor | None = None
) -> Sampled:
    """The tokens of all rows, as specified above; `forbidden_RV` is True where a mask forbids.

    `logits_RV` is float32 and is overwritten by the edits.
    """
    raw_failed = ~(logits_RV < torch.inf).all(-1)
    for index, row in enumerate(rows):
        _edit(logits_RV[index], row, None if forbidden_RV is None else forbidden_RV[index])
    largest_R = logits_RV.amax(-1)
    failures = _failures(raw_failed, largest_R)
    tokens: list[int] = _first_largest(logits_RV)
    drawn = [i for i, row in enumerate(rows) if not row.greedy and i not in failures]
    logits_max = GPU_GROUP_LOGITS_MAX if logits_RV.is_cuda else GROUP_LOGITS_MAX
    group_rows = max(1, logits_max // logits_RV.shape[1])
    for begin in range(0, len(drawn), group_rows):
        group = drawn[begin : begin + group_rows]
        chosen = _draw(logits_RV[group], [rows[index] for index in group])
        for index, token in zip(group, chosen, strict=True):
            tokens[index] = token
    return Sampled(tokens, failures)


def unpack_mask(words: bytes, rows: int, vocab_size: int) -> Tensor:
    """`Mask.words` as booleans, (rows, vocabulary), True where allowed.

    Raises `ValueError` if the length does not fit.
    """
    columns = -(-vocab_size // 32)
    if len(words) != rows * columns * 4:
        raise ValueError(f"mask of {len(words)} bytes for {rows} rows of {vocab_size} tokens")
    packed = torch.frombuffer(bytearray(words), dtype=torch.int32).view(rows, columns, 1)
    bits = (packed >> torch.arange(32, dtype=torch.int32)) & 1
    return bits.view(rows, columns * 32)[:, :vocab_size].bool()


def order_keys(logits: Tensor) -> Tensor:
    """An int64 for each logit of (…, V): unlike ones, larger is earlier in the order of step 4."""
    bits = (logits + 0.0).view(torch.int32).long()  # -0 becomes +0
    ordered = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return (ordered << 31) - torch.arange(logits.shape[-1], device=logits.device)


def exp_weights(scaled: Tensor) -> Tensor:
    """w of step 6 for y <= 0, as int64."""
    clamped = scaled.clamp(min=EXP_LEAST)
    power = (clamped * np.float32(LOG2_E).item()).round()
    rest = (clamped - power * LN_2_HIGH) - power * np.float32(LN_2_LOW).item()
    series = torch.full_like(rest, EXP_SERIES[0])
    for coefficient in EXP_SERIES[1:]:
        series = series * rest + np.float32(coefficient).item()
    scale = ((power.int() + 127) << 23).view(torch.float32)
    return ((series * scale).double() * WEIGHT_ONE).round().long()


def _edit(logits_V: Tensor, row: SampledRow, masked_V: Tensor | None) -> None:
    """Step 2."""
    sampling = row.sampling

    def ids(token_ids: Sequence[int]) -> Tensor:
        return torch.tensor(token_ids, dtype=torch.int64, device=logits_V.device)

    def floats(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits_V.device)

    if sampling.allowed_token_ids:
        forbidden = torch.ones(logits_V.shape, dtype=torch.bool, device=logits_V.device)
        forbidden[ids(sampling.allowed_token_ids)] = False
        logits_V.masked_fill_(forbidden, -torch.inf)
    if masked_V is not None:
        logits_V.masked_fill_(masked_V, -torch.inf)
    if row.forbidden:
        logits_V[ids(row.forbidden)] = -torch.inf
    if sampling.logit_bias:
        biased = ids([token for token, _ in sampling.logit_bias])
        logits_V[biased] += floats([bias for _, bias in sampling.logit_bias])
    if row.seen:
        seen = ids(list(row.seen))
        counts = floats(list(row.seen.values()))
        repetition, frequency, presence = floats(
            [sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty]
        )
        z = logits_V[seen]
        z = torch.where(z > 0, z / repetition, z * repetition)
        penalised = (z - frequency * counts) - presence
        logits_V[seen] = torch.where(counts > 0, penalised, z)


def _failures(raw_failed: Tensor, largest_R: Tensor) -> dict[int, str]:
    failed = raw_failed | ~(largest_R < torch.inf)
    failures = dict.fromkeys(failed.nonzero().flatten().tolist(), NOT_NUMBERS)
    for index in (largest_R == -torch.inf).nonzero().flatten().tolist():
        failures.setdefault(index, ALL_FORBIDDEN)
    return failures


def _first_largest(logits_RV: Tensor) -> list[int]:
    """Ids of the largest, of equals the lowest, for NaN anything; argmax promises no order."""
    is_largest = logits_RV == logits_RV.amax(-1, keepdim=True)
    ids = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    lowest: list[int] = torch.where(is_largest, ids, ids[-1]).amin(-1).tolist()
    return lowest


def _draw(logits_RV: Tensor, rows: Sequence[SampledRow]) -> list[int]:
    """Steps 6 to 9, of rows without NaN whose largest logit is finite."""

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits_RV.device).unsqueeze(1)

    largest_R1 = logits_RV.amax(-1, keepdim=True)
    inverse_R1 = 1.0 / column([row.sampling.temperature for row in rows])
    scaled_RV = (logits_RV - largest_R1) * inverse_R1
    kept_RV = scaled_RV >= HOPELESS
    filtered = [i for i, row in enumerate(rows) if row.sampling.top_k or row.sampling.top_p < 1]
    if filtered:
        top = [rows[i].sampling for i in filtered]
        kept_RV[filtered] &= _keep_first(logits_RV[filtered], scaled_RV[filtered], top)
    min_p = [row.sampling.min_p for row in rows]
    if any(share > 0 for share in min_p):
        least = [exact_log(share) if share > 0 else HOPELESS for share in min_p]
        kept_RV &= scaled_RV >= column(least)
    return _largest_scores(scaled_RV, kept_RV, rows)


def _keep_first(logits_RV: Tensor, scaled_RV: Tensor, top: Sequence[RowSampling]) -> Tensor:
    """Step 7 for top_k and top_p. Only the largest logits are sorted, unless a row keeps more."""
    vocab_size = logits_RV.shape[1]
    keys_RV = order_keys(logits_RV)
    weights_RV = exp_weights(scaled_RV)
    width = min(FILTER_WIDTH, vocab_size)
    last, counts = _prefix_ends(keys_RV, weights_RV, top, width)
    if width < vocab_size:
        # The first `width` do not give the sum that top_p is a share of, if top_k is longer.
        wide = [i for i, n in enumerate(counts.tolist()) if n >= width or top[i].top_k > width]
        if wide:
            sampling = [top[i] for i in wide]
            last[wide], _ = _prefix_ends(keys_RV[wide], weights_RV[wide], sampling, vocab_size)
    return keys_RV >= last.unsqueeze(1)


def _prefix_ends(
    keys_RV: Tensor, weights_RV: Tensor, top: Sequence[RowSampling], width: int
) -> tuple[Tensor, Tensor]:
    """Key of the last token that each row keeps, looking at its first `width`, and how many."""
    device = keys_RV.device
    limits = [min(sampling.top_k or width, width) for sampling in top]
    limits_R1 = torch.tensor(limits, device=device).unsqueeze(1)
    first = keys_RV.topk(width, dim=-1)
    weights_RW = weights_RV.gather(1, first.indices)
    sums_RW = weights_RW.cumsum(-1)
    within_RW = torch.arange(width, device=device) < limits_R1
    # The sum for top_p has all weights, except those that top_k removes.
    by_k = torch.tensor([bool(sampling.top_k) for sampling in top], device=device).unsqueeze(1)
    total = torch.where(
        by_k, sums_RW.gather(1, limits_R1 - 1), weights_RV.sum(-1, keepdim=True)
    ).double()
    share = torch.tensor([sampling.top_p for sampling in top], dtype=torch.float64, device=device)
    needed = (total * share.unsqueeze(1)).long().clamp_(min=1)
    whole = (share == 1).unsqueeze(1)
    counts = (within_RW & (whole | (sums_RW - weights_RW < needed))).sum(-1)
    return first.values.gather(1, (counts - 1).unsqueeze(1)).squeeze(1), counts


def _largest_scores(scaled_RV: Tensor, kept_RV: Tensor, rows: Sequence[SampledRow]) -> list[int]:
    """Steps 8 and 9: scores by torch's logarithm, then those near the best as specified."""
    bits_RV = _random_bits(kept_RV, rows)
    uniform_RV = (bits_RV.double() + 0.5) * 2.0**-32
    scores_RV = scaled_RV.double() - (-uniform_RV.log()).log()
    scores_RV.masked_fill_(~kept_RV, -torch.inf)
    near = scores_RV >= scores_RV.amax(-1, keepdim=True) - SCORE_TOLERANCE
    chosen = [-1] * len(rows)
    best = [-torch.inf] * len(rows)
    index, ids = near.nonzero(as_tuple=True)  # by row, then by id
    for row, token, y, bits in zip(
        index.tolist(),
        ids.tolist(),
        scaled_RV[index, ids].tolist(),
        bits_RV[index, ids].tolist(),
        strict=True,
    ):
        score = y + -exact_log(-exact_log((bits + 0.5) * 2.0**-32))
        if score > best[row]:
            best[row], chosen[row] = score, token
    return chosen


def _random_bits(kept_RV: Tensor, rows: Sequence[SampledRow]) -> Tensor:
    """x of step 8, computed for counters that serve at least one token that is kept."""
    device = kept_RV.device
    count, vocab_size = kept_RV.shape
    padded = torch.nn.functional.pad(kept_RV, (0, -vocab_size % TOKENS_PER_GROUP))
    grouped = padded.view(count, -1, 4, COUNTERS_PER_GROUP)
    row, group, lane = torch.nonzero(grouped.any(2), as_tuple=True)

    def of_row(values: list[int]) -> Tensor:
        return torch.tensor(values, device=device)[row]

    seeds = [sampled.sampling.seed for sampled in rows]
    words = philox4x32(
        (
            group * COUNTERS_PER_GROUP + lane,
            of_row([sampled.position for sampled in rows]),
            of_row([sampled.sampling.choice for sampled in rows]),
            torch.zeros_like(row),
        ),
        (of_row([seed & 0xFFFFFFFF for seed in seeds]), of_row([seed >> 32 for seed in seeds])),
    )
    bits = torch.zeros(grouped.shape, dtype=torch.int64, device=device)
    bits[row, group, :, lane] = torch.stack(words, dim=-1)
    return bits.view(count, -1)[:, :vocab_size]


def philox4x32(counter: Words4, key: tuple[Tensor, Tensor]) -> Words4:
    """Four words of 32 random bits for each element, a pure function of a key and a counter.

    The generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011): no state,
    no order, so any token's numbers can be had alone. Torch has no unsigned 32-bit products; 64-bit
    signed ones wrap around and their halves are masked out. All tensors are int64 with values from
    0 to 2**32 - 1 and broadcast against each other.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for number in range(ROUNDS):
        if number:
            k0 = (k0 + _INCREMENTS[0]) & _LOW_32_BITS
            k1 = (k1 + _INCREMENTS[1]) & _LOW_32_BITS
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = _high(second) ^ c1 ^ k0
        c1 = second & _LOW_32_BITS
        c2 = _high(first) ^ c3 ^ k1
        c3 = first & _LOW_32_BITS
    return c0, c1, c2, c3


def _high(product: Tensor) -> Tensor:
    return (product >> 32) & _LOW_32_BITS
