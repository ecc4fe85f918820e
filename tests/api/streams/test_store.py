"""Streams by id: visibility by principal and session, what is kept, for how long."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.errors import ApiError
from triolet.api.responses.response import RESPONSE_BYTES, Response
from triolet.api.settings import ServerLimits
from triolet.api.streams.adoption import Adoption
from triolet.api.streams.claims import Standing
from triolet.api.streams.store import StreamStore, Unread

from ..records import COMPLETED, make_live, make_store


def end(store: StreamStore[Response], response: Response) -> None:
    response.end(COMPLETED)
    store.end(response)


def add(kept_in: StreamStore[Response], /, response_id: str, **values: Any) -> Response:
    response = make_live(response_id, **values)
    kept_in.add(response)
    return response


def is_found(store: StreamStore[Response], response_id: str, session: str = "") -> bool:
    try:
        store.find(response_id, "p", session)
    except ApiError:
        return False
    return True


async def test_only_the_owner_sees_it() -> None:
    store = make_store()
    response = add(store, "r")
    assert store.find("r", "p") is response
    for _ in range(2):
        for ask in (store.find, store.delete, lambda i, p: store.cancel(i, p, "x")):
            with pytest.raises(ApiError, match="Response with id"):
                ask("r", "other")
        if not response.has_ended:
            end(store, response)
    assert store.find("r", "p") is response
    assert (store.active, store.kept) == (0, 1)


async def test_a_cancel_comes_once_and_an_ended_response_stays_as_it_is() -> None:
    store = make_store()
    response = add(store, "r")
    assert store.cancel("r", "p", "x") is response
    assert response.scope.cancel_called
    end(store, response)
    ending = response.record.ending
    assert ending is not None
    assert store.cancel("r", "p", "late").record.ending is ending


def keep_unread(
    store: StreamStore[Response],
    name: str,
    read: Callable[[], Response | None],
    ended_ns: int = 0,
    **kept: Any,
) -> None:
    limits = store.books.limits
    facts = {"session": "", "is_keyed": False, "keep_s": limits.ended_s, **kept}
    store.keep_unread(Unread(read, [name], **facts), 100, ended_ns or time.monotonic_ns())


async def test_one_of_a_life_before_is_read_when_it_is_asked_for() -> None:
    store, reads = make_store(), list[str]()

    def read(response_id: str) -> Response | None:
        reads.append(response_id)
        if response_id == "unreadable":
            return None
        response = make_live(response_id)
        response.end(COMPLETED)
        return response

    now_ns = time.monotonic_ns()
    old_ns = now_ns - int(store.books.limits.ended_s * 1e9)
    for name, ended_ns in {"old": old_ns, "r": now_ns, "unreadable": now_ns}.items():
        keep_unread(store, name, partial(read, name), ended_ns)
    keep_unread(store, "of a session", partial(read, "of a session"), session="session_1")
    assert store.kept == 3
    store.forget_session("session_1")
    assert (store.kept, reads) == (2, [])
    assert [is_found(store, name) for name in ("r", "r", "unreadable", "old")] == [
        True,
        True,
        False,
        False,
    ]
    assert store.begun("r") is store.find("r", "p")
    assert (store.kept, reads) == (1, ["r", "unreadable"])
    store.delete("r", "p")
    store.check_invariants()
    assert store.kept == 0


async def test_an_unread_one_with_a_key_that_makes_room_is_not_executed_again() -> None:
    store, now_ns = make_store(ServerLimits(ended_responses_max=1)), time.monotonic_ns()
    for name in ("first", "second"):
        keep_unread(store, name, lambda: None, is_keyed=True)
    assert store.books.executions.execution_of("first", 0, now_ns).standing is Standing.GONE


async def test_a_response_that_is_not_stored_is_known_while_it_runs() -> None:
    store = make_store()
    response = add(store, "r", store=False)
    assert is_found(store, "r")
    end(store, response)
    assert not is_found(store, "r")
    assert store.kept == 0


async def test_a_session_continues_what_is_not_stored_until_it_ends() -> None:
    store, session = make_store(), "session_1"
    end(store, add(store, "r", session=session, store=False))
    late = add(store, "late", session=session, store=False)
    other = add(store, "other")
    assert is_found(store, "r", session)
    assert not is_found(store, "r")
    store.forget_session(session)
    assert not is_found(store, "r", session)
    end(store, late)
    end(store, other)
    assert store.kept == 1


async def test_deleting() -> None:
    store = make_store()
    ended, running = add(store, "ended"), add(store, "running")
    end(store, ended)
    store.delete("ended", "p")
    store.delete("running", "p")
    assert running.scope.cancel_called
    assert not is_found(store, "ended")
    assert not is_found(store, "running")
    with pytest.raises(ApiError, match="Response with id"):
        store.delete("running", "p")
    end(store, running)
    assert (store.active, store.kept) == (0, 0)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (ServerLimits(ended_responses_max=2), ["r3", "r4"]),
        (ServerLimits(ended_bytes_max=3 * RESPONSE_BYTES), ["r3", "r4"]),
        (ServerLimits(ended_bytes_max=5), []),
        (ServerLimits(), ["r0", "r1", "r2", "r3", "r4"]),
    ],
)
async def test_the_oldest_are_forgotten(
    limits: ServerLimits, kept: list[str], autojump_clock: trio.testing.MockClock
) -> None:
    store = make_store(limits)
    names = [f"r{number}" for number in range(5)]
    for name in names:
        end(store, add(store, name))
    assert [name for name in names if is_found(store, name)] == kept
    await trio.sleep(limits.ended_s)
    assert [name for name in names if is_found(store, name)] == []


events = st.lists(st.tuples(st.sampled_from("aedf"), st.integers(0, 6)), max_size=40)


@given(events)
async def test_random_events_keep_the_bounds(plan: list[tuple[str, int]]) -> None:
    limits = ServerLimits(ended_responses_max=3, ended_bytes_max=4 * RESPONSE_BYTES)
    store, session = make_store(limits), "session_1"
    running: dict[str, Response] = {}
    for kind, number in plan:
        name = f"r{number}"
        if kind == "a" and not is_found(store, name, session) and name not in running:
            mine = {"session": session, "store": False} if number % 2 else {}
            running[name] = add(store, name, **mine)
        elif kind == "e" and name in running:
            end(store, running.pop(name))
        elif kind == "d" and is_found(store, name):
            store.delete(name, "p")
        elif kind == "f":
            store.forget_session(session)
        store.check_invariants()
        assert store.active == len(running)


async def test_of_an_earlier_boot_of_the_machine_one_is_kept_for_its_whole_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = make_store(ServerLimits(ended_s=100))
    response = add(store, "r")
    response.end(COMPLETED)
    response.adoption = Adoption(trio.current_time(), ended_ns=2**62)
    store.end(response)
    await trio.sleep(99)
    assert is_found(store, "r")
    await trio.sleep(2)
    assert not is_found(store, "r")
