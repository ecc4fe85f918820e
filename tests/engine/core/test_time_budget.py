"""Chunks are cut to the time there is; decodes are not; the first chunk always moves on."""

import random

import pytest

from triolet.engine.core.cost_model import CostModel
from triolet.engine.core.request import Request, make_request
from triolet.engine.core.scheduler import make_scheduler
from triolet.engine.core.time_budget import CHUNK_MIN, TimeBudget
from triolet.engine.messages import FinishReason
from triolet.tests.engine.core.driver import add_request

# A millisecond for each token, and nothing else.
TOKEN_S = 0.001


@pytest.fixture(scope="module")
def model() -> CostModel:
    model, chance = CostModel(), random.Random(3)
    for _ in range(2000):
        tokens = chance.randint(1, 256)
        model.learn(tokens, tokens * chance.randint(1, 300), TOKEN_S * tokens)
    return model


def make(count: int) -> list[Request]:
    return [
        make_request("f0", add_request(f"r{index}"), arrival=index, max_model_len=20)
        for index in range(count)
    ]


def test_what_decodes_is_paid_for_first(model: CostModel) -> None:
    assert TimeBudget(model, 0.1, []).cut(200, 0) == pytest.approx(100, abs=3)
    assert TimeBudget(model, 0.1, make(40)).cut(200, 0) == pytest.approx(60, abs=3)


def test_a_second_chunk_has_what_the_first_left(model: CostModel) -> None:
    time = TimeBudget(model, 0.1, make(2))
    assert time.cut(50, 0) == 50
    assert time.cut(200, 0) == pytest.approx(48, abs=3)
    assert time.cut(200, 0) <= 3
    assert time.cut(1, 0) == 1


def test_without_time_the_first_chunk_moves_on_and_nobody_begins_after_it(
    model: CostModel,
) -> None:
    time = TimeBudget(model, 0.1, make(200))
    assert time.has_time(), "or a prompt might never begin"
    assert time.cut(200, 0) == CHUNK_MIN
    assert not time.has_time()
    assert time.cut(200, 0) == 1
    assert TimeBudget(model, 0.1, make(200)).cut(5, 0) == 5


@pytest.mark.parametrize("target_s", [0.0, 1e-9])
def test_without_a_target_or_a_model_nothing_is_cut(target_s: float, model: CostModel) -> None:
    time = TimeBudget(model if not target_s else CostModel(), target_s, make(3))
    assert time.cut(10_000, 0) == 10_000
    assert time.has_time()


def test_the_scheduler_learns_from_steps_and_cuts_by_it() -> None:
    scheduler = make_scheduler(
        max_num_seqs=2,
        max_num_batched_tokens=256,
        kv_blocks=200,
        block_tokens=16,
        step_time_target_s=0.1,
    )
    chance = random.Random(5)
    for arrival in range(300):
        length = chance.randint(20, 250)
        request = make_request(
            "f0", add_request(f"r{arrival}", prompt=length), arrival=arrival, max_model_len=2000
        )
        scheduler.add(request)
        while not request.is_finished:
            scheduled = scheduler.schedule()
            assert scheduled is not None
            assert scheduler.complete() is scheduled
            tokens = sum(scheduled.step.token_counts)
            scheduler.learn(scheduled, TOKEN_S * tokens)
            if scheduled.sampling:
                request.token_ids.append(1)
                scheduler.end(request, FinishReason.LENGTH)
        if arrival > 250:
            assert tokens <= 120
    assert scheduler.cost_model.predict(100, 100 * 50) == pytest.approx(0.1, rel=0.2)
