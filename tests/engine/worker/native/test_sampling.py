"""The native sampler beside the torch sampler, on every instruction set; its rows and prompts."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from triolet.engine.kernels.library import machine_isas
from triolet.engine.step_messages import NOT_NUMBERS, Mask, Step
from triolet.engine.worker.executor_interface import StepOutcome
from triolet.engine.worker.step_inputs import PromptSpan
from triolet.engine.worker.torch.logprobs import logprobs_of
from triolet.engine.worker.torch.sampler import SampledRow, sample_tokens

from ...kernels.small_models import needs_kernels
from ...steps import sampling
from ..sampling_cases import NativeDriver, random_logits
from ..specified_sampler import Place, specified

pytestmark = needs_kernels
every_isa = pytest.mark.parametrize("isa", machine_isas())


# ---- the torch sampler

SPREADS: dict[str, Callable[[int], np.ndarray]] = {
    "peaked": lambda size: random_logits(1, size, 1, 8.0)[0],
    "flat": lambda size: random_logits(1, size, 2, 1.0)[0],
    "nearly equal": lambda size: random_logits(1, size, 3, 1e-6)[0],
    "equal": lambda size: np.zeros(size, np.float32),
    "two values": lambda size: (np.arange(size) % 3 == 0).astype(np.float32),
    "ascending": lambda size: np.linspace(-9, 9, size, dtype=np.float32),
    "one allowed": lambda size: np.where(np.arange(size) == size - 2, 0, -np.inf),
    "few allowed": lambda size: np.where(np.arange(size) % 999 == 5, 1.5, -np.inf),
    "huge": lambda size: random_logits(1, size, 4, 1e30)[0],
    "both zeros": lambda size: np.where(np.arange(size) % 2 == 0, -0.0, 0.0),
    "rounded": lambda size: random_logits(1, size, 5, 2.0)[0].round(1),
}
FILTERS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.01},
    {"temperature": 30.0},
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 2500},
    {"top_k": 10**6},
    {"top_p": 0.0},
    {"top_p": 1e-6},
    {"top_p": 0.5},
    {"top_p": 0.95},
    {"top_p": 0.9999999},
    {"top_p": 0.9, "temperature": 5.0},
    {"min_p": 0.3},
    {"min_p": 1.0},
    {"top_k": 40, "top_p": 0.9},
    {"top_k": 3000, "top_p": 0.97, "min_p": 0.01},
]


@every_isa
@pytest.mark.parametrize("kind", SPREADS)
def test_draws_what_torch_draws(isa: str, kind: str) -> None:
    for vocab_size in (4097, 128):
        parameters = [
            sampling(seed=seed, logprobs=7, **filters) for filters in FILTERS for seed in (5, 6)
        ]
        logits = np.tile(SPREADS[kind](vocab_size).astype(np.float32), (len(parameters), 1))
        positions = range(len(parameters))
        driver = NativeDriver(
            [Place(s, position=i) for s, i in zip(parameters, positions, strict=True)],
            vocab_size,
            isa,
        )
        found = driver.sample(logits)
        torch_rows = [SampledRow(s, i) for s, i in zip(parameters, positions, strict=True)]
        expected = sample_tokens(torch.from_numpy(logits.copy()), torch_rows)
        assert found == expected.token_ids
        raw = torch.from_numpy(logits)
        for row, message in enumerate(driver.logprobs):
            assert message == logprobs_of(raw[row : row + 1], [found[row] or 0], 7).message(row, 1)


@every_isa
def test_streams_with_penalties_are_torchs(isa: str) -> None:
    """Seen tokens are kept up by the kernels here, by the batch there."""
    vocab_size = 100
    places = [
        Place(sampling(seed=3, repetition_penalty=1.3), [1, 2, 3, 2]),
        Place(sampling(seed=4, presence_penalty=1.5, frequency_penalty=-0.4), [7], [8, 8, 9]),
        Place(sampling(seed=5, frequency_penalty=2.0, top_p=0.8, logprobs=2), [1]),
        Place(sampling(seed=6, bad_words=[[4], [5, 6]], min_tokens=20, suppressed_until_min=[3])),
    ]
    driver = NativeDriver(places, vocab_size, isa)
    outputs = [list(place.output) for place in places]
    for step in range(30):
        logits = random_logits(4, vocab_size, step, 1.0)
        found = driver.sample(logits.copy())
        for row, place in enumerate(places):
            held = driver.batch.rows[row]
            assert held.token_ids == (place.prompt or [0]) + outputs[row] + [found[row]]
            now = Place(place.sampling, place.prompt or [0], list(outputs[row]))
            assert found[row] == specified(logits[row].tolist(), now)
            outputs[row].append(found[row] or 0)


def test_a_mask_of_the_wrong_length_is_refused() -> None:
    driver = NativeDriver([Place(sampling(), allowed=[1])], 70, machine_isas()[0])
    driver.mask = lambda: Mask(1, b"1234")  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="mask of 4 bytes"):
        driver.sample(np.zeros((1, 70), np.float32))


# ---- prompts


@every_isa
def test_prompts_are_scored_as_torch_does(isa: str) -> None:
    driver = NativeDriver([Place(sampling())], 1000, isa, threads=2)
    logits = random_logits(20, 1000)
    targets = list(range(0, 1000, 50))
    span = PromptSpan(row=0, token_index=0, first=4, targets=[9, 9, *targets], alternatives=3)
    padded = np.zeros((20, driver.native.stride), np.float32)
    padded[:, :1000] = logits
    outcome = StepOutcome()
    driver.native.score(span, 2, padded, outcome)
    expected = logprobs_of(torch.from_numpy(logits), targets, 3).message(0, 6)
    assert outcome.logprobs == [expected]


@every_isa
def test_a_prompt_without_numbers_fails_its_row_when_it_samples(isa: str) -> None:
    driver = NativeDriver([Place(sampling()), Place(sampling())], 64, isa)
    inputs = driver.batch.take_step(driver.step)
    driver.native.take_step(driver.step)
    padded = np.zeros((2, 64), np.float32)
    padded[1, 3] = math.nan
    outcome = StepOutcome()
    span = PromptSpan(row=1, token_index=0, first=1, targets=[0, 0], alternatives=0)
    driver.native.score(span, 0, padded, outcome)
    assert outcome.logprobs == []
    outcome = StepOutcome()  # of a later step
    tokens = driver.native.sample(
        driver.step, inputs, np.zeros((2, 64), np.float32), outcome=outcome, wait_mask=driver.mask
    )
    result = outcome.result(1, inputs.sampled_rows(), tokens)
    assert (result.rows, result.failed_rows) == ([0], [(1, NOT_NUMBERS)])
    driver.batch.take_step(Step(number=2, finished=[1]))
    driver.batch.check_invariants()
    assert driver.batch.failures == {}


@every_isa
def test_a_row_does_not_depend_on_threads(isa: str) -> None:
    logits = random_logits(40, 3000, seed=2)
    places = [Place(sampling(seed=i, **FILTERS[i % len(FILTERS)]), position=i) for i in range(40)]
    alone, together, reversed_ = (
        NativeDriver(chosen, 3000, isa, threads).sample(given)
        for chosen, given, threads in (
            (places, logits, 1), (places, logits, 2), (places[::-1], logits[::-1], 3)
        )
    )  # fmt: skip
    assert alone == together == reversed_[::-1]


def test_rows_may_be_taken_again() -> None:
    """What a row asked for is gone with it."""
    isa = machine_isas()[0]
    first = sampling(
        temperature=0.0, presence_penalty=1.0, logprobs=1, bad_words=[[1]],
        allowed_token_ids=[5, 1], logit_bias=[(5, 9.0)],
    )  # fmt: skip
    driver = NativeDriver([Place(first, [3])], 100, isa)
    logits = np.zeros((1, 100), np.float32)
    logits[0, 1] = 1.0
    assert driver.sample(logits) == [5]
    assert len(driver.logprobs) == 1
    fresh = NativeDriver([Place(sampling(temperature=0.0), [3])], 100, isa).step
    driver.step = Step(
        number=2, finished=[0], new=fresh.new, rows=[0], token_counts=[1], samples=[True]
    )
    assert driver.sample(logits) == [1]
    assert driver.logprobs == []
