"""The waiting queue: order of arrival, parked requests block nobody; any order against a model."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from triolet.engine.core.queue import (
    ORDERS,
    WaitingQueue,
    fcfs_order,
    insert_ordered,
    remove_ordered,
)
from triolet.engine.core.request import Request, RequestStatus, make_request
from triolet.engine.messages import AddRequest
from triolet.engine.sampling_params import SamplingParams


def make(arrival: int, *, credit: int | None = None, remote: bool = False) -> Request:
    add = AddRequest(
        request_id=f"r{arrival}",
        attempt=1,
        prompt_token_ids=[1],
        sampling=SamplingParams(seed=1),
        credit=credit,
        waits_for_remote_kv=remote,
    )
    return make_request("f0", add, arrival=arrival, max_model_len=10)


def test_first_come_first_served_whenever_it_was_put_in() -> None:
    queue = WaitingQueue()
    requests = [make(arrival) for arrival in range(4)]
    for index in (2, 0, 3, 1):
        queue.add(requests[index])
    assert queue.requests() == requests
    assert queue.first() is requests[0]
    queue.remove(requests[0])
    queue.remove(requests[2])
    assert queue.requests() == [requests[1], requests[3]]
    assert len(queue) == 2
    assert requests[0] not in queue
    assert requests[1] in queue


def test_parked_request_blocks_nobody_and_keeps_its_place() -> None:
    queue = WaitingQueue()
    paused, remote, ready = make(0, credit=0), make(1, remote=True), make(2)
    for request in (paused, remote, ready):
        queue.add(request)
    assert queue.first() is ready
    assert len(queue) == 3
    queue.update(paused)  # nothing has changed
    assert queue.first() is ready
    paused.grant(1)
    remote.move_to(RequestStatus.WAITING)
    for request in (paused, remote, ready):
        queue.update(request)
    assert queue.requests() == [paused, remote, ready]
    queue.check_invariants()


def test_lower_priority_numbers_come_first_and_equals_as_they_came() -> None:
    queue = WaitingQueue(ORDERS["priority"])
    requests = [make(arrival) for arrival in range(5)]
    for request, priority in zip(requests, (0, -1, 0, 7, -1), strict=True):
        request.priority = priority
        queue.add(request)
    assert [request.arrival for request in queue.requests()] == [1, 4, 0, 2, 3]


def test_who_is_parked_comes_back_to_its_place() -> None:
    queue = WaitingQueue()
    requests = [make(arrival) for arrival in range(3)]
    for request in requests:
        queue.add(request)
    requests[0].waits_for_sibling = True
    queue.park(requests[0])
    queue.check_invariants()
    assert queue.first() is requests[1]
    requests[0].waits_for_sibling = False
    queue.update(requests[0])
    assert queue.first() is requests[0]


def test_removing_what_is_not_here_fails() -> None:
    requests = [make(0), make(2)]
    with pytest.raises((AssertionError, IndexError)):
        remove_ordered(requests, make(1), fcfs_order)
    with pytest.raises((AssertionError, IndexError)):
        remove_ordered(requests, make(3), fcfs_order)


def test_another_policy_is_another_key() -> None:
    requests: list[Request] = []
    for arrival in range(3):
        insert_ordered(requests, make(arrival), lambda request: (-request.arrival,))
    assert [request.arrival for request in requests] == [2, 1, 0]


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = WaitingQueue()
        self.model: list[Request] = []
        self.away: list[Request] = []
        self.arrivals = 0

    @rule(credit=st.sampled_from([None, 0]), remote=st.booleans())
    def add(self, credit: int | None, remote: bool) -> None:
        self.arrivals += 1
        request = make(self.arrivals, credit=credit, remote=remote)
        self.model.append(request)
        self.queue.add(request)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), comes_back=st.booleans())
    def remove(self, data: st.DataObject, comes_back: bool) -> None:
        request = data.draw(st.sampled_from(self.model))
        self.model.remove(request)
        self.queue.remove(request)
        if comes_back:
            self.away.append(request)

    @precondition(lambda self: self.away)
    @rule()
    def return_preempted(self) -> None:
        request = self.away.pop()
        self.model.append(request)
        self.queue.add(request)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def make_ready(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.model))
        request.grant(None)
        if request.status is RequestStatus.WAITING_FOR_REMOTE_KV:
            request.move_to(RequestStatus.WAITING)
        self.queue.update(request)

    @invariant()
    def ordered(self) -> None:
        self.queue.check_invariants()
        self.model.sort(key=fcfs_order)
        ready = [request for request in self.model if request.is_schedulable]
        assert self.queue.first() is (ready[0] if ready else None)
        parked = [request for request in self.model if not request.is_schedulable]
        assert self.queue.requests() == ready + parked


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(
    max_examples=20, stateful_step_count=20, deadline=None, derandomize=True, database=None
)
