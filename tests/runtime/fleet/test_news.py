"""News of one viewer: begun by a snapshot, in order, all or none of what waits."""

import attrs
import trio
import trio.testing

from triolet.runtime.control.calls import News
from triolet.runtime.fleet.news import NewsQueue


@attrs.define(eq=False)
class Bed:
    wanted: int = 0
    queue: NewsQueue = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.queue = NewsQueue(self.want, characters_max=10)

    def want(self) -> None:
        self.wanted += 1


async def test_nothing_counts_before_a_snapshot() -> None:
    bed = Bed()
    bed.queue.put("of before")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.queue.take)
        await trio.testing.wait_all_tasks_blocked()
        assert bed.wanted == 1
        bed.queue.put("all", is_whole=True)
    bed.queue.put("b")
    bed.queue.put("c")
    assert await bed.queue.take() == News(["b", "c"], is_whole=False)


async def test_a_snapshot_makes_void_what_waits() -> None:
    bed = Bed()
    bed.queue.put("all", is_whole=True)
    bed.queue.put("b")
    bed.queue.put("anew", is_whole=True)
    bed.queue.put("c")
    assert await bed.queue.take() == News(["anew", "c"], is_whole=True)
    assert bed.wanted == 0


async def test_a_viewer_that_is_too_slow_begins_anew() -> None:
    bed = Bed()
    bed.queue.put("all", is_whole=True)
    for _ in range(3):
        bed.queue.put("xxxx")
    assert bed.wanted == 0  # nothing is sent to one that does not read
    assert bed.queue.dropped == 3
    bed.queue.put("y")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.queue.take)
        await trio.testing.wait_all_tasks_blocked()
        assert bed.wanted == 1
        bed.queue.put("anew", is_whole=True)


async def test_what_a_cancelled_take_would_have_had_waits() -> None:
    bed = Bed()
    bed.queue.put("all", is_whole=True)
    with trio.CancelScope() as scope:
        scope.cancel("the reader left")
        await bed.queue.take()
    assert await bed.queue.take() == News(["all"], is_whole=True)
