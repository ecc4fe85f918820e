"""Waiting queue: principals take turns by tokens, after those that have run, within a priority."""

from triolet.engine.core.queue import ORDERS, WaitingQueue
from triolet.engine.core.request import Request
from triolet.tests.engine.core.driver import new_request


def test_turns_are_of_tokens_and_nobody_gathers_credit() -> None:
    queue = WaitingQueue()

    def new(name: str, number: int, prompt: int) -> Request:
        return new_request(
            f"{name}{number}", arrival=number, prompt=prompt, max_model_len=50, principal=name
        )

    requests = [new("large", number, 20) for number in range(10)]
    requests += [new("small", number + 10, 5) for number in range(20)]
    for request in requests:
        queue.add(request)
    order = []
    for _ in range(15):
        first = queue.first()
        assert first is not None
        queue.handle_admitted(first)
        queue.check_invariants()
        order.append(first.principal)
    assert order.count("large") == 3
    late = [new("late", number + 40, 5) for number in range(10)]
    for request in late:
        queue.add(request)
    assert queue.first() is late[0]
    queue.handle_admitted(late[0])
    assert queue.first() is not late[1]


def test_those_that_have_run_and_the_urgent_come_first_whosever_they_are() -> None:
    queue = WaitingQueue(ORDERS["priority"])
    requests = [
        new_request("a", arrival=1, prompt=5, max_model_len=50, principal="a"),
        new_request("b", arrival=2, prompt=5, max_model_len=50, principal="b"),
        new_request("c", arrival=3, prompt=5, max_model_len=50, principal="a", priority=-1),
        new_request("d", arrival=4, prompt=5, max_model_len=50, principal="a"),
    ]
    requests[3].has_run = True
    for request in requests:
        queue.add(request)
    order = []
    while (first := queue.first()) is not None:
        queue.handle_admitted(first)
        order.append(first.request_id)
    assert order == ["c", "d", "b", "a"]
