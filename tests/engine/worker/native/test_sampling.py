"""The native sampler against the specification and the torch sampler, on every instruction set."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.kernels.library import machine_isas, native_fault, open_library
from triolet.engine.step_messages import Mask, NewRow, RowLogprobs, Step
from triolet.engine.worker.executor_interface import ALL_FORBIDDEN, NOT_NUMBERS, StepOutcome
from triolet.engine.worker.input_batch import InputBatch, PromptSpan
from triolet.engine.worker.native.sampling import NativeSampling
from triolet.engine.worker.torch.logprobs import logprobs_of
from triolet.engine.worker.torch.sampler import SampledRow, sample_tokens

from ..sampling_cases import DISTRIBUTIONS, exact, fits, rows, sampling
from ..specified_sampler import Place, specified, specified_logprobs

pytestmark = pytest.mark.skipif(bool(native_fault()), reason="no compiler, no kernels")
every_isa = pytest.mark.parametrize("isa", machine_isas())


class Driver:
    """Rows that have their whole prompt computed, in a batch of their own."""

    def __init__(self, places: list[Place], vocab_size: int, isa: str, threads: int = 1) -> None:
        self.places, self.vocab_size = places, vocab_size
        lengths = [len(place.prompt or [0]) + len(place.output) for place in places]
        self.batch = InputBatch(
            rows_max=len(places), blocks=1, block_tokens=2**20, vocab_size=vocab_size
        )
        self.native = NativeSampling.of(
            self.batch, open_library(isa), threads=threads, length=max(lengths) + 100
        )
        self.step = Step(
            number=1,
            new=[
                NewRow(
                    row=row,
                    token_ids=(place.prompt or [0]) + place.output,
                    prompt_tokens=len(place.prompt or [0]),
                    computed_tokens=0,
                    block_ids=[0],
                    sampling=place.sampling,
                )
                for row, place in enumerate(places)
            ],
            rows=list(range(len(places))),
            token_counts=lengths,
            samples=[True] * len(places),
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


def sample(logits: np.ndarray, places: list[Place], isa: str, threads: int = 1) -> list[int | None]:
    return Driver(places, logits.shape[1], isa, threads).sample(logits)


def random_logits(rows: int, vocab_size: int, seed: int = 0, spread: float = 3.0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.standard_normal((rows, vocab_size)) * spread).astype(np.float32)


# ---- the specification


@every_isa
@given(case=rows())
def test_as_specified(isa: str, case: tuple[list[float], Place]) -> None:
    logits, place = case
    assert sample(np.array([logits], np.float32), [place], isa) == [specified(logits, place)]


@every_isa
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
    isa: str, logits: list[float], alternatives: int, bias: float
) -> None:
    edits: dict[str, Any] = {"logit_bias": [(0, bias)]} if bias else {}
    driver = Driver([Place(sampling(logprobs=alternatives, **edits))], len(logits), isa)
    (token,) = driver.sample(np.array([logits], np.float32))
    assert token is not None
    (found,) = driver.logprobs
    ids, values, rank = specified_logprobs(logits, token, alternatives)
    assert (found.row, found.first, found.width) == (0, 1, len(ids))
    assert np.frombuffer(found.token_ids, "<i4").tolist() == ids
    assert np.frombuffer(found.logprobs, "<f4").tolist() == values
    assert np.frombuffer(found.ranks, "<i4").tolist() == [rank]


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
        driver = Driver(
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
    driver = Driver(places, vocab_size, isa)
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


# ---- rows that fail


@every_isa
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_numbers_fails_alone(isa: str, temperature: float) -> None:
    nan, inf = math.nan, math.inf
    logits = np.zeros((7, 70), np.float32)
    logits[:, 1] = [9, nan, 9, 0, nan, 0, 0]
    logits[:, 0] = [1, 1, inf, 0, nan, 3e38, 1]
    logits[3] = -inf
    row = sampling(temperature=temperature, top_p=0.5, logprobs=1)
    places = [Place(row) for _ in range(7)]
    places[5] = Place(sampling(temperature=temperature, repetition_penalty=0.5), [0])
    places[6] = Place(row, allowed=[])
    driver = Driver(places, 70, isa)
    assert driver.sample(logits) == [1, *[None] * 6]
    assert driver.failures == {
        1: NOT_NUMBERS,
        2: NOT_NUMBERS,
        3: ALL_FORBIDDEN,
        4: NOT_NUMBERS,
        5: NOT_NUMBERS,
        6: ALL_FORBIDDEN,
    }
    assert [message.row for message in driver.logprobs] == [0]


def test_a_mask_of_the_wrong_length_is_refused() -> None:
    driver = Driver([Place(sampling(), allowed=[1])], 70, machine_isas()[0])
    driver.mask = lambda: Mask(1, b"1234")  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="mask of 4 bytes"):
        driver.sample(np.zeros((1, 70), np.float32))


# ---- prompts


@every_isa
def test_prompts_are_scored_as_torch_does(isa: str) -> None:
    driver = Driver([Place(sampling())], 1000, isa, threads=2)
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
    driver = Driver([Place(sampling()), Place(sampling())], 64, isa)
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


# ---- distributions, and independence of the batch


@pytest.mark.parametrize("filters", DISTRIBUTIONS)
def test_distribution(filters: dict[str, Any]) -> None:
    logits = random_logits(1, 30, seed=5, spread=1.5)
    places = [Place(sampling(seed=77, **filters), position=draw) for draw in range(4000)]
    found = Counter(sample(np.tile(logits, (4000, 1)), places, machine_isas()[0]))
    counts = Counter({token: count for token, count in found.items() if token is not None})
    assert counts.total() == 4000
    assert fits(counts, exact(logits[0], **filters))


@every_isa
def test_a_row_does_not_depend_on_others_order_or_threads(isa: str) -> None:
    logits = random_logits(40, 3000, seed=2)
    places = [Place(sampling(seed=i, **FILTERS[i % len(FILTERS)]), position=i) for i in range(40)]
    together = sample(logits, places, isa)
    assert together == sample(logits, places, isa, threads=2)
    assert together[::-1] == sample(logits[::-1], places[::-1], isa, threads=3)
    alone = [sample(logits[i : i + 1], places[i : i + 1], isa)[0] for i in range(40)]
    assert together == alone
    assert len(set(alone)) > 20


def test_rows_may_be_taken_again() -> None:
    """What a row asked for is gone with it."""
    isa = machine_isas()[0]
    first = sampling(
        temperature=0.0, presence_penalty=1.0, logprobs=1, bad_words=[[1]],
        allowed_token_ids=[5, 1], logit_bias=[(5, 9.0)],
    )  # fmt: skip
    driver = Driver([Place(first, [3])], 100, isa)
    logits = np.zeros((1, 100), np.float32)
    logits[0, 1] = 1.0
    assert driver.sample(logits) == [5]
    assert len(driver.logprobs) == 1
    fresh = Driver([Place(sampling(temperature=0.0), [3])], 100, isa).step
    driver.step = Step(
        number=2, finished=[0], new=fresh.new, rows=[0], token_counts=[1], samples=[True]
    )
    assert driver.sample(logits) == [1]
    assert driver.logprobs == []
