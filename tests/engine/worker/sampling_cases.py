"""Rows for samplers, both samplers over them, and the distributions that draws must have."""

import math
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np
import torch
from hypothesis import strategies as st

from triolet.engine.kernels.binding import declare_functions
from triolet.engine.kernels.library import open_library
from triolet.engine.step_messages import Mask, NewRow, RowLogprobs, Step
from triolet.engine.worker.executor_interface import StepOutcome
from triolet.engine.worker.input_batch import HeldRow, InputBatch
from triolet.engine.worker.native.sampling import NativeSampling
from triolet.engine.worker.torch.logprobs import logprobs_of
from triolet.engine.worker.torch.sampler import SampledRow, sample_tokens

from ..steps import compute, new_row, sampling
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


def _new_row(row: int, place: Place) -> NewRow:
    prompt = place.prompt or [0]
    tokens = prompt + place.output
    return new_row(row, tokens, [0], prompt_tokens=len(prompt), sampling=place.sampling)


def held_row(place: Place, vocab_size: int) -> HeldRow:
    """The row as a worker holds it."""
    new = _new_row(0, place)
    tokens = new.token_ids
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


def random_logits(rows: int, vocab_size: int, seed: int = 0, spread: float = 3.0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.standard_normal((rows, vocab_size)) * spread).astype(np.float32)


class NativeDriver:
    """Rows that have their whole prompt computed, in a batch of their own."""

    def __init__(self, places: list[Place], vocab_size: int, isa: str, threads: int = 1) -> None:
        self.places, self.vocab_size = places, vocab_size
        lengths = [len(place.prompt or [0]) + len(place.output) for place in places]
        self.batch = InputBatch(
            rows_max=len(places), blocks=1, block_tokens=2**20, vocab_size=vocab_size
        )
        functions = declare_functions(open_library(isa))
        self.native = NativeSampling.of(
            self.batch, functions, threads=threads, length=max(lengths) + 100
        )
        self.step = compute(
            1,
            *((row, length, True) for row, length in enumerate(lengths)),
            new=[_new_row(row, place) for row, place in enumerate(places)],
            masked=[row for row, place in enumerate(places) if place.allowed is not None],
        )
        self.logprobs: list[RowLogprobs] = []
        self.failures: dict[int, str] = {}

    def mask(self) -> Mask:
        bits = np.zeros((len(self.step.masked), -(-self.vocab_size // 32) * 32), np.uint8)
        for index, row in enumerate(self.step.masked):
            bits[index, self.places[row].allowed or []] = 1
        bits[:, self.vocab_size :] = 1  # what is beyond the vocabulary is of no meaning
        return Mask(self.step.number, np.packbits(bits, bitorder="little").tobytes())

    def sample(self, logits: np.ndarray) -> list[int | None]:
        """One step; a token of each row, None where it fails. Later steps decode."""
        inputs = self.batch.take_step(self.step)
        self.native.take_step(self.step)
        for sampled, place in zip(inputs.samplings, self.places, strict=True):
            if place.position is not None:
                sampled.position = place.position
        padded = np.full((len(logits), self.native.stride), 1e30, np.float32)
        padded[:, : self.vocab_size] = logits
        outcome = StepOutcome()
        tokens = self.native.sample(self.step, inputs, padded, outcome=outcome, wait_mask=self.mask)
        self.batch.finish_step(self.step, tokens)
        result = outcome.result(self.step.number, inputs.sampled_rows(), tokens)
        self.logprobs, self.failures = result.logprobs, dict(result.failed_rows)
        self.step = Step(
            number=self.step.number + 1,
            rows=self.step.rows,
            token_counts=[1] * len(self.places),
            samples=self.step.samples,
            masked=self.step.masked,
        )
        found = dict(zip(result.rows, result.token_ids, strict=True))
        return [found.get(row) for row in range(len(self.places))]


@attrs.frozen
class Found:
    """Of one step: a token of each row, None where it fails; why; and logprobs that are asked."""

    token_ids: list[int | None]
    failures: dict[int, str]
    logprobs: list[RowLogprobs]


def sample(sampler: str, logits: np.ndarray, places: list[Place]) -> Found:
    """By torch, or by the kernels of an instruction set."""
    if sampler == "torch":
        return _sample_by_torch(logits, places)
    driver = NativeDriver(places, logits.shape[1], sampler)
    return Found(driver.sample(logits), driver.failures, driver.logprobs)


def _sample_by_torch(logits: np.ndarray, places: list[Place]) -> Found:
    """As the runner of models does it."""
    held = [held_row(place, logits.shape[1]) for place in places]
    rows = [
        SampledRow(row.sampling, place.index, row.seen, row.forbidden())
        for row, place in zip(held, places, strict=True)
    ]
    forbidden = torch.zeros(logits.shape, dtype=torch.bool)
    for index, place in enumerate(places):
        if place.allowed is not None:
            forbidden[index] = True
            forbidden[index, place.allowed] = False
    raw = torch.from_numpy(np.ascontiguousarray(logits, np.float32))
    found = sample_tokens(raw.clone(), rows, forbidden)
    tokens = [None if i in found.failures else token for i, token in enumerate(found.token_ids)]
    logprobs = [
        logprobs_of(raw[i : i + 1], [token], row.sampling.logprobs).message(i, len(row.token_ids))
        for i, (token, row) in enumerate(zip(tokens, held, strict=True))
        if token is not None and row.sampling.logprobs is not None
    ]
    return Found(tokens, found.failures, logprobs)
