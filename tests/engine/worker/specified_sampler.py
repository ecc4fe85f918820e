"""The sampler's specification, one token at a time in plain Python: what every sampler must match.

Written from the text in `engine/worker/torch/sampler.py`, step by step and slowly, so that
it can be read beside it. float32 is numpy's scalar type, whose operations round one by one.
"""

import math
from collections.abc import Sequence

import attrs
import numpy as np

from triolet.engine.step_messages import RowSampling
from triolet.engine.worker.numerics import exact_log

F = np.float32
FORBIDDEN = F(-math.inf)


@attrs.frozen
class Place:
    """A row that samples: its parameters, its tokens so far, and what a mask allows."""

    sampling: RowSampling
    prompt: list[int] = attrs.field(factory=list)
    output: list[int] = attrs.field(factory=list)
    allowed: list[int] | None = None
    # Where the output's length would be too long to write down.
    position: int | None = None

    @property
    def index(self) -> int:
        """Of the output token that is sampled."""
        return len(self.output) if self.position is None else self.position


def specified(logits: Sequence[float], place: Place) -> int | None:
    """The token; None if the row fails."""
    raw = [F(value) for value in logits]
    if any(math.isnan(value) or value == math.inf for value in raw):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        z = edited(raw, place)
        largest = max(z)
        if not math.isfinite(largest):
            return None
        return drawn(z, largest, place)


def edited(raw: list[np.float32], place: Place) -> list[np.float32]:
    """Step 2."""
    z, s = list(raw), place.sampling
    for token in range(len(z)):
        if s.allowed_token_ids and token not in s.allowed_token_ids:
            z[token] = FORBIDDEN
        if place.allowed is not None and token not in place.allowed:
            z[token] = FORBIDDEN
    for word in s.bad_words:
        rest = word[:-1]
        if len(rest) <= len(place.output) and place.output[len(place.output) - len(rest) :] == rest:
            z[word[-1]] = FORBIDDEN
    if place.index < s.min_tokens:
        for token in s.suppressed_until_min:
            z[token] = FORBIDDEN
    for token, bias in s.logit_bias:
        z[token] = z[token] + F(bias)
    repetition = F(s.repetition_penalty)
    for token in set(place.prompt + place.output):
        z[token] = z[token] / repetition if z[token] > 0 else z[token] * repetition
    for token in set(place.output):
        count = F(place.output.count(token))
        z[token] = (z[token] - F(s.frequency_penalty) * count) - F(s.presence_penalty)
    return z


def drawn(z: list[np.float32], largest: np.float32, place: Place) -> int:
    """Steps 4 to 9."""
    s = place.sampling
    order = sorted(range(len(z)), key=lambda token: (-z[token], token))
    if s.temperature < 1e-5:
        return order[0]
    inverse = F(1) / F(s.temperature)
    y = [(value - largest) * inverse for value in z]
    w = [weight(value) for value in y]
    if s.top_k:
        order = order[: s.top_k]
    if s.top_p < 1:
        needed = max(1, int(float(sum(w[token] for token in order)) * s.top_p))
        before, kept = 0, []
        for token in order:
            if before >= needed:
                break
            kept.append(token)
            before += w[token]
        order = kept
    if s.min_p > 0:
        order = [token for token in order if y[token] >= F(exact_log(s.min_p))]
    scores = {token: float(y[token]) + gumbel(s, place.index, token) for token in order}
    return min(scores, key=lambda token: (-scores[token], token))


def weight(y: np.float32) -> int:
    """Step 6."""
    v = max(y, F(-64))
    n = np.rint(v * F(1.44269504))
    r = (v - n * F(0.693359375)) + n * F(0.000212194440)
    p = r * F(1 / 720) + F(1 / 120)
    for coefficient in (1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
        p = p * r + F(coefficient)
    return round(math.ldexp(float(p), int(n)) * 2.0**40)  # Python rounds ties to even


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """The paper's definition of Philox4x32-10, word for word."""
    left0, right0, left1, right1 = counter
    key0, key1 = key
    for _ in range(10):
        high0, low0 = divmod(left0 * 0xD2511F53, 2**32)
        high1, low1 = divmod(left1 * 0xCD9E8D57, 2**32)
        left0, right0, left1, right1 = high1 ^ right0 ^ key0, low1, high0 ^ right1 ^ key1, low0
        key0, key1 = (key0 + 0x9E3779B9) % 2**32, (key1 + 0xBB67AE85) % 2**32
    return left0, right0, left1, right1


def gumbel(s: RowSampling, position: int, token: int) -> float:
    """Steps 8 and 9."""
    counter = (16 * (token // 64) + token % 16, position, s.choice, 0)
    words = philox(counter, (s.seed % 2**32, s.seed // 2**32))
    u = (words[token % 64 // 16] + 0.5) * 2.0**-32
    return -exact_log(-exact_log(u))


def specified_logprobs(
    logits: Sequence[float], token: int, alternatives: int
) -> tuple[list[int], list[float], int]:
    """Token and alternatives, their logprobs, and the token's rank; of finite logits and -inf."""
    z = [F(value) for value in logits]
    largest = max(z)
    total = sum(weight(value - largest) for value in z)
    log_sum = exact_log(float(total) * 2.0**-40)
    order = sorted(range(len(z)), key=lambda other: (-z[other], other))
    ids = [token, *order[:alternatives]]
    values = [float(F((float(z[i]) - float(largest)) - log_sum)) for i in ids]
    return ids, values, order.index(token) + 1
