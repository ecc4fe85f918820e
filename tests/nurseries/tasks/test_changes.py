"""Changes: every task that waits is woken by the next change, and sleeps again until another."""

import trio
import trio.testing

from triolet.nurseries.tasks.changes import Changes


async def test_a_change_wakes_all_who_wait_and_is_spent() -> None:
    changes, woken = Changes(), list[str]()

    async def look(name: str) -> None:
        while True:
            await changes.wait()
            woken.append(name)

    async with trio.open_nursery() as nursery:
        changes.notify()  # nobody waits yet
        for name in ("a", "b"):
            nursery.start_soon(look, name)
        for count in range(3):
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(woken) == sorted(["a", "b"] * count)
            changes.notify()
            changes.notify()  # no more than one, for those who sleep
        nursery.cancel_scope.cancel("seen")


async def test_the_event_of_the_next_change_is_missed_by_no_pause() -> None:
    changes = Changes()
    following = changes.next
    await trio.lowlevel.checkpoint()
    changes.notify()
    assert following.is_set()
    assert not changes.next.is_set()
