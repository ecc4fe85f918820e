"""Chooses one token for each row of logits: a pure function of row, parameters, seed and position.

No generator state, no dependence on the batch: a request that is resumed elsewhere draws the same
tokens. What follows is the specification that any other implementation must meet bit for bit. `f32`
rounds to float32 (nearest, ties to even); `exp` and `log` are float64 functions (their last bit is
not specified; it is lost in the rounding that follows, but for one case in 2**28).

1. Suppress: while fewer than `min_tokens` tokens were sampled, logits of `suppressed_until_min`
   become -inf; so do tokens that the row's mask forbids.
2. Greedy, if the temperature is below 1e-5: the largest logit; of equals, the lowest id.
3. y[i] = f32(f32(x[i] - max x) / f32(temperature)), so the largest is exactly 0.
4. w[i] = trunc(f32(exp(y[i])) · 2**40), an integer: weights relative to the largest. Sums of
   integers do not depend on their order.
5. Tokens are ordered by y, largest first, of equals the lowest id first. The filters keep a prefix:
   top_k the first k; then top_p: of these with weights summing to W, each one before which the sum
   is less than max(1, trunc(float64(W) · top_p)); then min_p: those with w >= trunc(min_p · 2**40).
   A token of weight 0 is never chosen (it has less than 1e-12 of the largest one's probability).
6. Random bits: x = Philox4x32-10 with key (seed mod 2**32, seed div 2**32) and counter
   (id div 4, position, choice, 0), word id mod 4, for token `id`.
7. u = (x >> 8) · 2**-24 + 2**-25, exact in float64; g = f32(-log(-log(u))).
8. The token kept with the largest f32(y + g); of equals, the lowest id (Gumbel-max: its
   distribution is the softmax of the kept y).

`position` is the index of the token in the output, 0 for the first. Must not know requests, steps
or how logits came to be. Letters: R rows, V vocabulary, W tokens looked at by the filters.
"""

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from ..step_messages import RowSampling
from .philox import philox4x32

# vLLM's bound: below it a division would overflow before it made any difference.
GREEDY_BELOW = 1e-5
# Weights are fixed-point numbers with 40 bits; 2**22 of them still fit a signed 64-bit sum.
WEIGHT_ONE = 2**40
# The filters first look at so many of the largest logits; sorting all costs ten times as much.
FILTER_WIDTH = 1024
# Rows are done in groups of at most so many logits: bounds the int64 temporaries (8 MiB each).
GROUP_LOGITS_MAX = 2**20
WORDS_PER_COUNTER = 4


@attrs.frozen
class SampledRow:
    """One row of logits: whose parameters, and which output token (its index) it is for."""

    sampling: RowSampling
    position: int

    @property
    def greedy(self) -> bool:
        """Whether the largest logit is taken as it is."""
        return self.sampling.temperature < GREEDY_BELOW


def sample_tokens(
    logits_RV: Tensor, rows: Sequence[SampledRow], forbidden_RV: Tensor | None = None
) -> list[int]:
    """The tokens of all rows, as specified above; `forbidden_RV` is True where a mask forbids.

    `logits_RV` is float32 and is overwritten where tokens are suppressed.
    """
    _suppress(logits_RV, rows)
    if forbidden_RV is not None:
        logits_RV.masked_fill_(forbidden_RV, -torch.inf)
    tokens: list[int] = logits_RV.argmax(-1).tolist()
    drawn = [index for index, row in enumerate(rows) if not row.greedy]
    group_rows = max(1, GROUP_LOGITS_MAX // logits_RV.shape[1])
    for begin in range(0, len(drawn), group_rows):
        group = drawn[begin : begin + group_rows]
        chosen = _draw(logits_RV[group], [rows[index] for index in group])
        for index, token in zip(group, chosen, strict=True):
            tokens[index] = token
    return tokens


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


def _suppress(logits_RV: Tensor, rows: Sequence[SampledRow]) -> None:
    for index, row in enumerate(rows):
        if row.position < row.sampling.min_tokens and row.sampling.suppressed_until_min:
            logits_RV[index, row.sampling.suppressed_until_min] = -torch.inf


def _draw(logits_RV: Tensor, rows: Sequence[SampledRow]) -> list[int]:
    def column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=logits_RV.device).unsqueeze(1)

    temperature = column([row.sampling.temperature for row in rows], torch.float32)
    scaled_RV = (logits_RV - logits_RV.amax(-1, keepdim=True)) / temperature
    weights_RV = _weights(scaled_RV)
    kept_RV = weights_RV > 0
    filtered = [i for i, row in enumerate(rows) if row.sampling.top_k or row.sampling.top_p < 1]
    if filtered:
        top = [rows[i].sampling for i in filtered]
        kept_RV[filtered] &= _keep_first(scaled_RV[filtered], weights_RV[filtered], top)
    if any(row.sampling.min_p > 0 for row in rows):
        least = column([int(row.sampling.min_p * WEIGHT_ONE) for row in rows], torch.int64)
        kept_RV &= weights_RV >= least
    scores_RV = _scores(scaled_RV, kept_RV, rows)
    chosen: list[int] = scores_RV.argmax(-1).tolist()
    return chosen


def _weights(scaled: Tensor) -> Tensor:
    return (scaled.double().exp().float().double() * WEIGHT_ONE).long()


def _keep_first(scaled_RV: Tensor, weights_RV: Tensor, top: Sequence[RowSampling]) -> Tensor:
    """Step 5 for top_k and top_p. Only the largest logits are sorted, unless a row keeps more."""
    vocab_size = scaled_RV.shape[1]
    width = min(FILTER_WIDTH, vocab_size)
    counts = _prefix_lengths(scaled_RV, weights_RV, top, width)
    if width < vocab_size:
        wide = [i for i, count in enumerate(counts.tolist()) if count >= width]
        if wide:
            sampling = [top[i] for i in wide]
            counts[wide] = _prefix_lengths(scaled_RV[wide], weights_RV[wide], sampling, vocab_size)
    width = int(counts.max())
    largest_RW = scaled_RV.topk(width, dim=-1).values
    last = largest_RW.gather(1, (counts - 1).unsqueeze(1))
    above_RV = scaled_RV > last
    equal_RV = scaled_RV == last
    room = counts.unsqueeze(1) - above_RV.sum(-1, keepdim=True)
    return above_RV | (equal_RV & (equal_RV.cumsum(-1) <= room))


def _prefix_lengths(
    scaled_RV: Tensor, weights_RV: Tensor, top: Sequence[RowSampling], width: int
) -> Tensor:
    """How many tokens each row keeps, looking at its `width` largest: `width` means or more."""
    device = scaled_RV.device
    limits = [sampling.top_k if sampling.top_k else 2**31 for sampling in top]
    limits_R1 = torch.tensor(limits, device=device).clamp_(max=width).unsqueeze(1)
    weights_RW = _weights(scaled_RV.topk(width, dim=-1).values)
    sums_RW = weights_RW.cumsum(-1)
    within_RW = torch.arange(width, device=device) < limits_R1
    # All weights count for top_p, those that top_k removes excepted.
    by_k = torch.tensor([bool(sampling.top_k) for sampling in top], device=device).unsqueeze(1)
    total = torch.where(
        by_k, sums_RW.gather(1, limits_R1 - 1), weights_RV.sum(-1, keepdim=True)
    ).double()
    share = torch.tensor([sampling.top_p for sampling in top], dtype=torch.float64, device=device)
    needed = (total * share.unsqueeze(1)).long().clamp_(min=1)
    whole = (share == 1).unsqueeze(1)
    return (within_RW & (whole | (sums_RW - weights_RW < needed))).sum(-1)


def _scores(scaled_RV: Tensor, kept_RV: Tensor, rows: Sequence[SampledRow]) -> Tensor:
    """Steps 6 to 8, for counters that serve at least one token that is kept."""
    device = scaled_RV.device
    count, vocab_size = scaled_RV.shape
    padding = (0, -vocab_size % WORDS_PER_COUNTER)
    kept = torch.nn.functional.pad(kept_RV, padding).view(count, -1, WORDS_PER_COUNTER)
    row, counter = torch.nonzero(kept.any(-1), as_tuple=True)

    def of_row(values: list[int]) -> Tensor:
        return torch.tensor(values, device=device)[row]

    seeds = [sampled.sampling.seed for sampled in rows]
    words = philox4x32(
        (
            counter,
            of_row([sampled.position for sampled in rows]),
            of_row([sampled.sampling.choice for sampled in rows]),
            torch.zeros_like(counter),
        ),
        (of_row([seed & 0xFFFFFFFF for seed in seeds]), of_row([seed >> 32 for seed in seeds])),
    )
    uniform = (torch.stack(words, dim=-1) >> 8).double() * 2.0**-24 + 2.0**-25
    gumbel = (-(-uniform.log()).log()).float()
    scores = scaled_RV.new_full(kept.shape, -torch.inf)
    padded = torch.nn.functional.pad(scaled_RV, padding).view(kept.shape)
    scores[row, counter] = padded[row, counter] + gumbel
    return scores.masked_fill_(~kept, -torch.inf).view(count, -1)
