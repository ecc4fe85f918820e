"""A request's state: what ADD makes of it, its transitions, credit, and the worker's sampling."""

import attrs
import pytest

from triolet.engine.core.request import (
    CREDIT_UNLIMITED,
    NO_ROW,
    Request,
    RequestStatus,
    make_request,
)
from triolet.engine.messages import AddRequest
from triolet.engine.sampling_params import SamplingParams

ADD = AddRequest(
    request_id="a",
    attempt=1,
    prompt_token_ids=[1, 2, 3],
    output_token_ids=[4],
    sampling=SamplingParams(max_tokens=5, min_tokens=2, seed=9, stop_token_ids=(7,)),
    eos_token_ids=[8, 6],
    choice=2,
)


def make(add: AddRequest = ADD) -> Request:
    return make_request("f0", add, arrival=1, max_model_len=10)


def test_replayed_tokens_are_output() -> None:
    request = make()
    assert request.token_ids == [1, 2, 3, 4]
    assert request.output_count == 1
    assert (request.length_min, request.length_max) == (5, 8)
    request.token_ids.append(5)
    assert ADD.prompt_token_ids == [1, 2, 3], "the message is not ours to change"
    request.check_invariants()


@pytest.mark.parametrize(("max_tokens", "length_max"), [(None, 10), (6, 9), (7, 10), (50, 10)])
def test_length_is_bounded_by_the_model(max_tokens: int | None, length_max: int) -> None:
    add = attrs.evolve(ADD, sampling=SamplingParams(max_tokens=max_tokens, seed=1))
    assert make(add).length_max == length_max


def test_ignored_end_of_sequence_neither_stops_nor_is_suppressed() -> None:
    assert make().row_sampling().suppressed_until_min == [6, 7, 8]
    ignoring = make(attrs.evolve(ADD, sampling=attrs.evolve(ADD.sampling, ignore_eos=True)))
    assert ignoring.eos_token_ids == frozenset()
    assert ignoring.row_sampling().suppressed_until_min == [7]
    anything = make(attrs.evolve(ADD, sampling=attrs.evolve(ADD.sampling, min_tokens=0)))
    assert anything.row_sampling().suppressed_until_min == []


def test_sampling_is_passed_on() -> None:
    sampling = SamplingParams(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, seed=4)
    row = make(attrs.evolve(ADD, sampling=sampling)).row_sampling()
    assert (row.temperature, row.top_k, row.top_p, row.min_p) == (0.5, 3, 0.9, 0.1)
    assert (row.seed, row.choice, row.min_tokens) == (4, 2, 0)


def test_penalties_biases_and_what_is_to_be_logged_are_passed_on() -> None:
    sampling = SamplingParams(
        seed=4,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        logit_bias={7: 2},
        allowed_token_ids=[7, 8],
        logprobs=3,
        prompt_logprobs=0,
    )
    row = make(attrs.evolve(ADD, sampling=sampling, bad_words=[[5, 6]])).row_sampling()
    penalties = (row.presence_penalty, row.frequency_penalty, row.repetition_penalty)
    assert penalties == (0.5, -0.5, 1.5)
    assert (row.logit_bias, row.allowed_token_ids) == ([(7, 2)], [7, 8])
    assert (row.bad_words, row.logprobs, row.prompt_logprobs) == ([[5, 6]], 3, 0)
    assert make().row_sampling().repetition_penalty == 1.0


def test_credit_only_grows() -> None:
    request = make(attrs.evolve(ADD, credit=1))
    seen = [request.has_credit]  # one token is out already
    request.grant(2)
    assert [*seen, request.has_credit] == [False, True]
    request.grant(1)
    assert request.credit == 2
    request.grant(None)
    request.grant(3)
    assert request.credit == CREDIT_UNLIMITED


def test_schedulable_needs_credit() -> None:
    assert make().is_schedulable
    assert not make(attrs.evolve(ADD, credit=1)).is_schedulable


def test_nothing_follows_an_end() -> None:
    request = make()
    request.move_to(RequestStatus.FINISHED_STOPPED)
    assert request.is_finished
    with pytest.raises(AssertionError):
        request.move_to(RequestStatus.RUNNING)


def test_a_request_that_waits_holds_nothing() -> None:
    request = make()
    request.row = 0
    with pytest.raises(AssertionError):
        request.check_invariants()
    request.row = NO_ROW
    request.block_ids = [1]
    with pytest.raises(AssertionError):
        request.check_invariants()
