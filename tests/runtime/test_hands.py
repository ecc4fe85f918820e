"""Contents in hand: named while they are, alone if suspected, refused after that."""

import os

import pytest
import trio
import trio.testing

from triolet.nurseries.processes.progress_page import open_page
from triolet.runtime.errors import RequestQuarantined
from triolet.runtime.hands import (
    PLACES,
    TABLE_BYTES,
    ContentKind,
    Hands,
    content_of,
    open_table,
    read_hands,
)
from triolet.runtime.messages import Doubted

FOREVER = float("inf")


def content(data: bytes) -> bytes:
    return content_of(ContentKind.BODY, "p", data)


def make_hands(*suspects: bytes) -> Hands:
    hands = Hands(memoryview(bytearray(TABLE_BYTES)))
    hands.handle_doubted(Doubted([content(data) for data in suspects]))
    return hands


def named(hands: Hands) -> list[bytes]:
    assert hands.memory is not None
    hands.check_invariants()
    return read_hands(bytes(hands.memory))


async def hold(
    hands: Hands,
    data: bytes,
    *,
    task_status: trio.TaskStatus[trio.Event] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Have it in hand until the event is set that this starts with."""
    done = trio.Event()
    with await hands.take(ContentKind.BODY, "p", data):
        task_status.started(done)
        await done.wait()


async def test_what_is_in_hand_is_on_the_page_and_what_was_is_not() -> None:
    with open_page(1, TABLE_BYTES) as page, open_table(page.fd) as table:
        hands = Hands(table)
        with await hands.take(ContentKind.BODY, "p", b"a"):
            assert read_hands(page.read_table()) == [content(b"a")]
        assert read_hands(page.read_table()) == []


def test_the_same_bytes_of_another_principal_or_for_another_reader_are_another_content() -> None:
    found = {
        content_of(kind, principal, data)
        for kind in (ContentKind.BODY, ContentKind.TEXT)
        for principal in ("p", "q")
        for data in (b"a", b"b")
    }
    assert len(found) == 8


async def test_without_a_page_nothing_is_named() -> None:
    with open_table(None) as table, await Hands(table).take(ContentKind.HEAD, "", b"a"):
        pass
    read, write = os.pipe()  # no page: what is no file cannot be mapped
    os.close(write)
    with pytest.raises((OSError, ValueError)), open_table(read):
        pass
    os.close(read)


async def test_a_suspect_waits_until_nothing_is_in_hand_and_others_wait_for_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    hands = make_hands(b"s")
    async with trio.open_nursery() as nursery:
        a = await nursery.start(hold, hands, b"a")
        ended = list[bytes]()

        async def run(data: bytes) -> None:
            with await hands.take(ContentKind.BODY, "p", data):
                assert named(hands) == [content(data)]
                await trio.sleep(1)
            ended.append(data)

        nursery.start_soon(run, b"s")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(run, b"b")
        await trio.testing.wait_all_tasks_blocked()
        assert named(hands) == [content(b"a")], "both wait"
        a.set()
    assert ended == [b"s", b"b"]
    assert hands.passed == [content(b"s")], "to be reported"


async def test_one_that_is_acquitted_meanwhile_waits_no_longer() -> None:
    hands = make_hands(b"s")
    async with trio.open_nursery() as nursery:
        a = await nursery.start(hold, hands, b"a")
        nursery.start_soon(hold, hands, b"s")
        await trio.testing.wait_all_tasks_blocked()
        hands.handle_doubted(Doubted())
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(named(hands)) == sorted([content(b"a"), content(b"s")])
        a.set()
        nursery.cancel_scope.cancel()
    assert named(hands) == []


async def test_one_that_is_refused_is_so_at_once_or_when_it_waits() -> None:
    hands = make_hands(b"s")
    refused = Doubted([], {content(b"s"): FOREVER, content(b"old"): 0.0})

    async def take_refused() -> None:
        with pytest.raises(RequestQuarantined):
            await hands.take(ContentKind.BODY, "p", b"s")

    async with trio.open_nursery() as nursery:
        a = await nursery.start(hold, hands, b"a")
        nursery.start_soon(take_refused)
        await trio.testing.wait_all_tasks_blocked()
        hands.handle_doubted(refused)
        await trio.testing.wait_all_tasks_blocked()
        a.set()
    await take_refused()
    with await hands.take(ContentKind.BODY, "p", b"old"):
        assert named(hands) == [content(b"old")], "that is over"


async def test_a_suspect_that_leaves_while_it_waits_holds_nobody_up() -> None:
    hands = make_hands(b"s")
    async with trio.open_nursery() as nursery:
        a = await nursery.start(hold, hands, b"a")
        with trio.move_on_after(0):
            await hands.take(ContentKind.BODY, "p", b"s")
        b = await nursery.start(hold, hands, b"b")
        a.set()
        b.set()


async def test_there_are_so_many_places_and_more_wait_for_one() -> None:
    hands = make_hands()
    async with trio.open_nursery() as nursery:
        done = [await nursery.start(hold, hands, bytes([place])) for place in range(PLACES)]
        nursery.start_soon(hold, hands, b"more")
        await trio.testing.wait_all_tasks_blocked()
        assert content(b"more") not in named(hands)
        done.pop().set()
        await trio.testing.wait_all_tasks_blocked()
        assert content(b"more") in named(hands)
        nursery.cancel_scope.cancel()
