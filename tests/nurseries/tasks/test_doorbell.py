"""No ring is lost, whenever it comes and whoever is cancelled."""

import pytest
import trio
import trio.testing

from triolet.nurseries.tasks.parking import Doorbell


async def test_a_ring_wakes_who_waits_and_is_spent() -> None:
    bell, woken = Doorbell(), list[int]()

    async def answer() -> None:
        for number in range(3):
            await bell.wait()
            woken.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        for number in range(3):
            await trio.testing.wait_all_tasks_blocked()
            assert len(woken) == number
            bell.ring()
            bell.ring()  # no more than one


async def test_a_ring_before_the_wait_is_kept() -> None:
    bell = Doorbell()
    bell.ring()
    with trio.testing.assert_checkpoints():
        await bell.wait()
    with trio.move_on_after(0) as scope:
        await bell.wait()
    assert scope.cancelled_caught


@pytest.mark.parametrize("ring_first", [True, False])
async def test_a_ring_and_a_cancellation_at_once(ring_first: bool) -> None:
    bell, came = Doorbell(), list[bool]()

    async def answer(scope: trio.CancelScope) -> None:
        with scope:
            await bell.wait()
            came.append(True)

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer, scope)
        await trio.testing.wait_all_tasks_blocked()
        for act in (bell.ring, scope.cancel)[:: 1 if ring_first else -1]:
            act()
    if not came:  # the ring is there for the next one
        with trio.fail_after(60):
            await bell.wait()
