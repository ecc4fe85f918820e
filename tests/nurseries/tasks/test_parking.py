"""Parking places and doorbells: one sleeper at a time, woken or cancelled; no ring is lost."""

import gc
import weakref

import pytest
import trio
import trio.testing

from triolet.nurseries.tasks.parking import _SHARED_ORDER, Doorbell, ParkingPlace


@pytest.mark.parametrize("tried", [True, False])
async def test_a_task_sleeps_until_it_is_woken(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, tried: bool
) -> None:
    """With a trio that was tried, and with a newer one."""
    assert _SHARED_ORDER is not None, "try the tests with this trio, then raise TRIO_TRIED"
    if not tried:
        monkeypatch.setattr("triolet.nurseries.tasks.parking._SHARED_ORDER", None)
    place, turns = ParkingPlace(), list[int]()

    @nursery.start_soon
    async def sleeper() -> None:
        for turn in range(3):
            await place.park()
            turns.append(turn)

    for turn in range(3):
        await trio.testing.wait_all_tasks_blocked()
        assert place.is_taken
        assert len(turns) == turn
        with pytest.raises(trio.BusyResourceError):
            await place.park()
        place.wake("whatever it is called with")
        place.wake()  # it is awake already
        assert not place.is_taken
    await trio.testing.wait_all_tasks_blocked()
    assert turns == [0, 1, 2]
    place.wake()  # nobody sleeps here: not kept
    assert not place.is_taken


@pytest.mark.parametrize("wake_first", [True, False])
async def test_woken_and_cancelled_at_once(wake_first: bool) -> None:
    place, scope, woken = ParkingPlace(), trio.CancelScope(), list[bool]()

    async def sleeper() -> None:
        with scope:
            await place.park()
            woken.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper)
        await trio.testing.wait_all_tasks_blocked()
        for act in (place.wake, scope.cancel)[:: 1 if wake_first else -1]:
            act()
            assert not place.is_taken
    assert woken == [True] * wake_first
    assert scope.cancelled_caught is not wake_first


async def test_who_was_cancelled_here_is_not_woken_elsewhere(nursery: trio.Nursery) -> None:
    here, elsewhere, woken = ParkingPlace(), ParkingPlace(), list[bool]()
    scope = trio.CancelScope()

    @nursery.start_soon
    async def sleeper() -> None:
        with scope:
            await here.park()
        await elsewhere.park()
        await here.park()
        woken.append(True)

    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    here.wake()
    await trio.testing.wait_all_tasks_blocked()
    assert elsewhere.is_taken
    elsewhere.wake()
    await trio.testing.wait_all_tasks_blocked()
    assert here.is_taken, "it is free for another"
    here.wake()
    await trio.testing.wait_all_tasks_blocked()
    assert woken == [True]


async def test_a_sleeper_leaves_no_reference_cycle() -> None:
    gc.disable()
    try:
        places = []
        for _ in range(3):
            place = ParkingPlace()
            places.append(weakref.ref(place))
            with trio.move_on_after(0):
                await place.park()
            place.wake()
        del place
        await trio.lowlevel.checkpoint()  # trio lets go of what it gave us last
        assert [each() for each in places] == [None] * 3
    finally:
        gc.enable()


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


async def test_a_ring_that_is_cleared_ends_no_wait() -> None:
    bell = Doorbell()
    bell.ring()
    bell.clear()
    with trio.move_on_after(0) as scope:
        await bell.wait()
    assert scope.cancelled_caught
