"""Both samplers: as specified to the bit, with exact distributions, and each row for itself."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.kernels.library import machine_isas, native_fault
from triolet.engine.step_messages import ALL_FORBIDDEN, NOT_NUMBERS

from ..steps import sampling
from .sampling_cases import DISTRIBUTIONS, exact, fits, random_logits, rows, sample
from .specified_sampler import Place, specified, specified_logprobs

DRAWS = 4000
SAMPLERS = ["torch", *([] if native_fault() else machine_isas())]
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS)
KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"top_k": 50},
    {"top_p": 0.95},
    {"top_p": 0.0},
    {"top_p": 0.9999, "temperature": 3.0},
    {"min_p": 0.05},
    {"top_k": 2000, "top_p": 0.99},
]


@every_sampler
@given(case=rows())
def test_as_specified(sampler: str, case: tuple[list[float], Place]) -> None:
    logits, place = case
    found = sample(sampler, np.array([logits], np.float32), [place])
    assert found.token_ids == [specified(logits, place)]


@every_sampler
@given(
    logits=st.lists(
        st.sampled_from([-math.inf, -200.0, -0.0, 0.0, 1.0, 1.0]) | st.floats(-30, 30, width=32),
        min_size=1,
        max_size=150,
    ).filter(lambda values: max(values) > -math.inf),
    alternatives=st.integers(0, 22),
    bias=st.sampled_from([0.0, 500.0]),
)
def test_logprobs_as_specified(
    sampler: str, logits: list[float], alternatives: int, bias: float
) -> None:
    edits: dict[str, Any] = {"logit_bias": [(0, bias)]} if bias else {}
    place = Place(sampling(logprobs=alternatives, **edits))
    sampled = sample(sampler, np.array([logits], np.float32), [place])
    (token,), (found,) = sampled.token_ids, sampled.logprobs
    assert token is not None
    ids, values, rank = specified_logprobs(logits, token, alternatives)
    assert (found.row, found.first, found.width) == (0, 1, len(ids))
    assert np.frombuffer(found.token_ids, "<i4").tolist() == ids
    assert np.frombuffer(found.logprobs, "<f4").tolist() == values
    assert np.frombuffer(found.ranks, "<i4").tolist() == [rank]


@every_sampler
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_numbers_fails_alone(sampler: str, temperature: float) -> None:
    nan, inf = math.nan, math.inf
    logits = np.zeros((7, 70), np.float32)
    logits[:, 1] = [9, nan, 9, 0, nan, 0, 0]
    logits[:, 0] = [1, 1, inf, 0, nan, 3e38, 1]
    logits[3] = -inf
    row = sampling(temperature=temperature, top_p=0.5, logprobs=1)
    places = [Place(row) for _ in range(7)]
    places[5] = Place(sampling(temperature=temperature, repetition_penalty=0.5), [0])
    places[6] = Place(row, allowed=[])
    found = sample(sampler, logits, places)
    assert found.token_ids == [1, *[None] * 6]
    assert found.failures == {
        1: NOT_NUMBERS,
        2: NOT_NUMBERS,
        3: ALL_FORBIDDEN,
        4: NOT_NUMBERS,
        5: NOT_NUMBERS,
        6: ALL_FORBIDDEN,
    }
    assert [message.row for message in found.logprobs] == [0]


# Of one sampler: each gives the very tokens of the specified one.
@pytest.mark.parametrize("filters", DISTRIBUTIONS)
@pytest.mark.parametrize("varied", ["position", "seed", "choice"])
def test_distribution(filters: dict[str, Any], varied: str) -> None:
    logits = random_logits(1, 30, seed=5, spread=1.5)
    places = []
    for draw in range(DRAWS):
        number = {"seed": 77, "choice": 0, "position": 0, varied: draw}
        position = number.pop("position")
        places.append(Place(sampling(**number, **filters), position=position))
    found = Counter(sample(SAMPLERS[-1], np.tile(logits, (DRAWS, 1)), places).token_ids)
    counts = Counter({token: count for token, count in found.items() if token is not None})
    assert counts.total() == DRAWS
    assert fits(counts, exact(logits[0], **filters))


@every_sampler
def test_a_row_does_not_depend_on_its_batch(sampler: str) -> None:
    logits = random_logits(40, 3000, seed=2)
    places = [Place(sampling(seed=i, **KINDS[i % len(KINDS)]), position=i) for i in range(40)]
    alone = [sample(sampler, logits[i : i + 1], places[i : i + 1]).token_ids[0] for i in range(40)]
    assert sample(sampler, logits, places).token_ids == alone
    assert sample(sampler, logits[::-1], places[::-1]).token_ids == alone[::-1]
    assert len(set(alone)) > 20
