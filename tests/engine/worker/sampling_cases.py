"""Rows for samplers: random and adversarial ones, and the distributions that draws must have."""

import math
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from hypothesis import strategies as st

from triolet.engine.step_messages import NewRow, RowSampling, Step
from triolet.engine.worker.input_batch import HeldRow, InputBatch

from .specified_sampler import Place

# Ties, both zeros, what vanishes beside them, what overflows when divided, and what is forbidden.
NASTY = [-math.inf, -3e38, -88.0, -30.0, -5.0, -1.5, -0.0, 0.0, 0.5, 0.5, 2.0, 4.0, 1e-40, 3e38]
DISTRIBUTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.7},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.2},
    {"temperature": 1.3, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
]
NOTHING: Mapping[str, Any] = MappingProxyType({})


def sampling(**changes: Any) -> RowSampling:
    """Parameters that draw from the logits as they are, but for `changes`."""
    return RowSampling(
        **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1, **changes}
    )


def held_row(place: Place, vocab_size: int) -> HeldRow:
    """The row as a worker holds it."""
    tokens = (place.prompt or [0]) + place.output
    new = NewRow(
        row=0,
        token_ids=tokens,
        prompt_tokens=len(place.prompt or [0]),
        computed_tokens=0,
        block_ids=[0],
        sampling=place.sampling,
    )
    batch = InputBatch(rows_max=1, blocks=1, block_tokens=len(tokens), vocab_size=vocab_size)
    batch.take_step(Step(number=1, new=[new]))
    return batch.rows[0]


@st.composite
def rows(draw: st.DrawFn, vocab_max: int = 23) -> tuple[list[float], Place]:
    """Nasty logits, and any parameters at all that their vocabulary allows."""
    finite = st.floats(-20, 20, width=32)
    logits = draw(st.lists(st.sampled_from(NASTY) | finite, min_size=2, max_size=vocab_max))
    token = st.integers(0, len(logits) - 1)
    tokens = st.lists(token, max_size=6)
    parameters: dict[str, Any] = {
        "temperature": draw(st.sampled_from([0.0, 1e-4, 0.3, 1.0, 2.5, 100.0])),
        "top_k": draw(st.integers(0, 25)),
        "top_p": draw(st.sampled_from([1e-9, 0.3, 0.9, 1.0])),
        "min_p": draw(st.sampled_from([0.0, 1e-300, 0.1, 0.5, 1.0])),
        "seed": draw(st.integers(0, 2**63 - 1)),
        "choice": draw(st.integers(0, 3)),
    }
    if draw(st.booleans()):
        bias = st.sampled_from([-100.0, -0.1, 0.3, 100.0])
        parameters |= {
            "min_tokens": draw(st.integers(0, 4)),
            "suppressed_until_min": draw(tokens),
            "repetition_penalty": draw(st.sampled_from([1.0, 0.5, 1.3])),
            "frequency_penalty": draw(st.sampled_from([0.0, -2.0, 0.1])),
            "presence_penalty": draw(st.sampled_from([0.0, -2.0, 0.7])),
            "logit_bias": list(draw(st.dictionaries(token, bias, max_size=4)).items()),
            "allowed_token_ids": draw(tokens),
            "bad_words": draw(st.lists(st.lists(token, min_size=1, max_size=3), max_size=3)),
        }
    allowed = draw(st.none() | tokens)
    prompt = draw(st.lists(token, min_size=1, max_size=5))
    return logits, Place(sampling(**parameters), prompt, draw(tokens), allowed)


def exact(logits: np.ndarray, **filters: Any) -> dict[int, float]:
    """Probabilities in float64, for logits without ties."""
    s = sampling(**filters)
    order = np.argsort(-logits, kind="stable")
    scaled = logits[order].astype(np.float64) / s.temperature
    probabilities = np.exp(scaled - scaled[0])
    if s.top_k:
        probabilities[s.top_k :] = 0
    probabilities /= probabilities.sum()
    probabilities[np.cumsum(probabilities) - probabilities >= s.top_p] = 0
    probabilities[probabilities < s.min_p * probabilities[0]] = 0
    probabilities /= probabilities.sum()
    pairs = zip(order.tolist(), probabilities.tolist(), strict=True)
    return {token: value for token, value in pairs if value > 0}


def fits(found: Counter[int], expected: Mapping[int, float]) -> bool:
    """Whether draws may be from a distribution, by Pearson's chi-square to five deviations.

    Tokens expected fewer than five times are one class; what is not expected does not fit.
    """
    draws = found.total()
    rare = [token for token, p in expected.items() if p * draws < 5]
    classes = [[token] for token in expected if token not in rare] + ([rare] if rare else [])
    statistic = sum(
        (sum(found[t] for t in tokens) - sum(expected[t] for t in tokens) * draws) ** 2
        / (sum(expected[t] for t in tokens) * draws)
        for tokens in classes
    )
    freedom = max(1, len(classes) - 1)  # mean of the statistic; its deviation is sqrt(2 · freedom)
    return set(found) <= set(expected) and statistic < freedom + 5 * math.sqrt(2 * freedom)
