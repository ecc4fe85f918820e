"""Requests in order: who is admitted, who waits, who is preempted first."""

import pytest

from triolet.engine.core.block_pool import BlockPool
from triolet.engine.core.kv_cache_manager import KVCacheManager
from triolet.engine.core.queue import (
    ORDERS,
    WaitingQueue,
    fcfs_order,
    insert_ordered,
    next_victim,
    remove_ordered,
    victims_for_admission,
)
from triolet.engine.core.request import Request, RequestStatus
from triolet.tests.engine.core.driver import new_request


def make(arrival: int, *, credit: int | None = None, prompt: int = 4) -> Request:
    return new_request(f"r{arrival}", arrival=arrival, credit=credit, prompt=prompt)


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


def test_parked_request_delays_none_and_keeps_its_place() -> None:
    queue = WaitingQueue()
    paused, compiling, ready = make(0, credit=0), make(1), make(2)
    compiling.status = RequestStatus.WAITING_FOR_GRAMMAR
    for request in (paused, compiling, ready):
        queue.add(request)
    assert queue.first() is ready
    assert len(queue) == 3
    queue.update(paused)  # nothing has changed
    assert queue.first() is ready
    paused.grant(1)
    compiling.move_to(RequestStatus.WAITING)
    for request in (paused, compiling, ready):
        queue.update(request)
    assert queue.requests() == [paused, compiling, ready]
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


def test_the_last_paused_one_yields_first_then_the_last_that_could_run() -> None:
    first, second, third, fourth = make(1, credit=0), make(2, credit=0), make(3), make(4)
    runnable = [third, fourth]
    assert next_victim([first, second, third, fourth], runnable) is second
    assert next_victim([first, third, fourth], runnable) is first
    assert next_victim([third, fourth], runnable) is fourth
    assert runnable == [third]


@pytest.mark.parametrize(
    ("blocks", "places", "expected"),
    [
        (0, 0, []),
        (-3, 1, ["r4"]),
        (1, 0, ["r4"]),
        (2, 0, ["r4", "r2"]),
        (1, 2, ["r4", "r2"]),
        (4, 0, None),
        (0, 3, None),
    ],
)
def test_paused_ones_yield_if_they_are_enough(
    blocks: int, places: int, expected: list[str] | None
) -> None:
    kv_cache = KVCacheManager(4, BlockPool(8))
    running = [make(1), make(2, credit=0, prompt=5), make(3), make(4, credit=0)]
    for request in running:
        kv_cache.admit(request, [])
    victims = victims_for_admission(running, kv_cache, [], blocks=blocks, places=places)
    named = None if victims is None else [victim.request_id for victim in victims]
    assert named == expected


def test_a_block_that_the_newcomer_hits_does_not_become_free() -> None:
    kv_cache = KVCacheManager(4, BlockPool(8))
    paused = make(1, credit=0, prompt=8)
    kv_cache.admit(paused, [])
    hit = paused.block_ids[:1]
    assert victims_for_admission([paused], kv_cache, hit, blocks=1, places=0) == [paused]
    assert victims_for_admission([paused], kv_cache, hit, blocks=2, places=0) is None
