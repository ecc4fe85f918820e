"""Requests: what ADD makes of one, its transitions, credit, ends, and how ends are remembered."""

from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from triolet.engine.core.endings import Endings, Statistics, Stop, check_stop
from triolet.engine.core.request import (
    CREDIT_UNLIMITED,
    NO_ROW,
    Request,
    RequestStatus,
    make_request,
)
from triolet.engine.core.request_store import FinishedRequest, RequestStore
from triolet.engine.errors import EngineDraining, InvalidRequest, OutputFailed
from triolet.engine.messages import AddRequest, FinishReason, RequestKey
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.step_messages import ALL_FORBIDDEN, NOT_NUMBERS
from triolet.tests.engine.core.driver import make_scheduler, new_request

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


def test_parameters_of_samplers_are_passed_on() -> None:
    sampling = SamplingParams(
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
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
    assert (row.temperature, row.top_k, row.top_p, row.min_p) == (0.5, 3, 0.9, 0.1)
    assert (row.seed, row.choice, row.min_tokens) == (4, 2, 0)
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


def test_nothing_follows_an_end() -> None:
    request = make()
    request.move_to(RequestStatus.FINISHED)
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


def record(name: str, *, home: str = "f0", tokens: int = 2) -> FinishedRequest:
    return FinishedRequest(
        home=home,
        request_id=name,
        attempt=1,
        output_token_ids=list(range(tokens)),
        finish_reason=FinishReason.STOP,
        stop_token_id=tokens - 1,
    )


def test_requests_are_found_by_frontend_id_and_attempt() -> None:
    store = RequestStore()
    first, other = new_request("a", attempt=2), new_request("a", frontend="f1")
    store.insert(first)
    store.insert(other)
    assert store.find("f0", "a") is first
    assert store.find("f2", "a") is None
    assert store.find_attempt("f0", "a", 2) is first
    assert store.find_attempt("f0", "a", 1) is None
    assert store.live("f1") == [other]
    assert store.live_count() == 2
    store.remove(first)
    assert store.find("f0", "a") is None
    assert store.live("f0") == []
    store.check_invariants()


def test_new_request_takes_the_place_of_what_ended_under_its_name() -> None:
    store = RequestStore()
    store.keep_finished(record("a"))
    assert store.find_finished("f0", RequestKey("a", 1)) == record("a")
    assert store.find_finished("f0", RequestKey("a", 2)) is None
    assert store.find_finished("f1", RequestKey("a", 1)) is None
    store.insert(new_request("a"))
    assert store.find_finished("f0", RequestKey("a", 1)) is None
    store.check_invariants()


def test_frontend_forgets_only_its_own() -> None:
    store = RequestStore()
    for name, frontend in (("a", "f0"), ("b", "f0"), ("a", "f1")):
        store.keep_finished(record(name, home=frontend))
    store.forget_finished("f0", keep={"b"})
    assert store.find_finished("f0", RequestKey("a", 1)) is None
    assert store.find_finished("f0", RequestKey("b", 1)) is not None
    assert store.find_finished("f1", RequestKey("a", 1)) is not None
    store.check_invariants()


def kept(store: RequestStore) -> list[str]:
    return [name for name in "abcde" if store.find_finished("f0", RequestKey(name, 1)) is not None]


def test_oldest_goes_at_the_bound() -> None:
    store = RequestStore(finished_count_max=2, finished_tokens_max=5)
    for name in ("a", "b", "c"):
        store.keep_finished(record(name))
    assert kept(store) == ["b", "c"]
    store.keep_finished(record("d", tokens=3))
    assert kept(store) == ["c", "d"]
    store.keep_finished(record("e", tokens=6))  # too long to be kept at all
    assert kept(store) == []
    store.check_invariants()


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 6))))
def test_bounds_hold_whatever_ends(ends: list[tuple[str, int]]) -> None:
    store = RequestStore(finished_count_max=3, finished_tokens_max=8)
    for name, tokens in ends:
        store.keep_finished(record(name, tokens=tokens))
        store.check_invariants()
        kept = store.find_finished("f0", RequestKey(name, 1))
        assert kept is not None
        assert len(kept.output_token_ids) == tokens


def make_endings() -> tuple[Endings, Request]:
    scheduler = make_scheduler(
        max_num_seqs=1, max_num_batched_tokens=4, kv_blocks=4, block_tokens=4
    )
    endings = Endings(scheduler, RequestStore(), Statistics())
    request = new_request()
    scheduler.add(request)
    endings.store.insert(request)
    return endings, request


def test_a_finished_request_is_remembered() -> None:
    endings, request = make_endings()
    request.token_ids.append(9)
    record = endings.finish(request, Stop(FinishReason.STOP, 9))
    assert endings.store.find_finished("f0", RequestKey("a", 1)) is record
    assert (record.output_token_ids, record.stop_token_id, record.error) == ([9], 9, "")
    assert request.is_finished
    assert endings.store.live_count() == len(endings.scheduler.waiting) == 0
    assert endings.statistics.requests_finished == 1


@pytest.mark.parametrize(
    ("reason", "code"),
    [(NOT_NUMBERS, OutputFailed.code), (ALL_FORBIDDEN, InvalidRequest.code)],
)
def test_that_every_token_is_forbidden_is_the_request_s_own_fault(reason: str, code: str) -> None:
    endings, request = make_endings()
    record = endings.fail_row(request, reason)
    assert record.error_code == code
    assert reason in record.error


def test_an_aborted_request_is_forgotten() -> None:
    endings, request = make_endings()
    endings.abort(request)
    assert endings.store.find_finished("f0", RequestKey("a", 1)) is None
    assert (endings.store.live_count(), endings.statistics.requests_aborted) == (0, 1)


def test_a_refused_request_gets_an_error_behind_its_replayed_tokens() -> None:
    endings, _ = make_endings()
    record = endings.refuse("f0", RequestKey("b", 1), EngineDraining(), [1, 2])
    output = record.output_from(2)
    assert (output.first_index, output.token_ids, output.error_code) == (2, [], "engine_draining")
    assert endings.store.find_finished("f0", RequestKey("b", 1)) is record


END = Stop(FinishReason.STOP)
LENGTH = Stop(FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("output", "changes", "stop"),
    [
        ([], {}, None),
        ([3], {}, None),
        ([8], {}, END),
        ([3, 9], {}, END),
        ([7], {}, Stop(FinishReason.STOP, 7)),
        ([3] * 4, {}, None),
        ([3] * 5, {}, LENGTH),
        ([3] * 4 + [8], {}, END),
        ([3] * 4 + [7], {}, Stop(FinishReason.STOP, 7)),
        ([8], {"stop_token_ids": (8,)}, END),
        ([8], {"stop_token_ids": (8,), "ignore_eos": True}, Stop(FinishReason.STOP, 8)),
        ([8, 8], {"ignore_eos": True}, None),
        ([8] * 5, {"ignore_eos": True}, LENGTH),
        ([8], {"min_tokens": 2}, None),
        ([7], {"min_tokens": 2}, None),
        ([3, 8], {"min_tokens": 2}, END),
        ([3] * 8, {"min_tokens": 9, "max_tokens": None}, LENGTH),
    ],
    ids=str,
)
def test_rules_in_order(output: list[int], changes: dict[str, Any], stop: Stop | None) -> None:
    add = AddRequest(
        request_id="a",
        attempt=1,
        prompt_token_ids=[1, 8],  # which is no output, and does not end it
        output_token_ids=output,
        eos_token_ids=[8, 9],
        sampling=SamplingParams(**{"max_tokens": 5, "stop_token_ids": (7,), **changes}),
    )
    assert check_stop(make(add)) == stop


def test_requests_that_vanish_fail_the_invariants() -> None:
    statistics = Statistics(requests_added=3, requests_finished=1, requests_aborted=1)
    statistics.check_invariants(1)
    with pytest.raises(AssertionError):
        statistics.check_invariants(0)
