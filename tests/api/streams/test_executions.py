"""Executions of keyed requests: pending, buried, and what a successor knows of them."""

import trio
import trio.testing

from triolet.api.streams.claims import Standing
from triolet.api.streams.executions import Executions

from .frontends import Values


def standing(executions: Executions, response_id: str, epoch: int = 1, now_ns: int = 0) -> Standing:
    return executions.execution_of(response_id, epoch, now_ns).standing


async def test_it_is_pending_until_it_is_admitted_or_given_up() -> None:
    executions, waited = Executions(8, 1), []

    async def wait(response_id: str) -> None:
        await executions.wait_begun(response_id)
        waited.append(response_id)

    async with trio.open_nursery() as nursery:
        with executions.pending("a"), executions.pending("b"):
            for response_id in ("a", "b", "c"):
                nursery.start_soon(wait, response_id)
            await trio.testing.wait_all_tasks_blocked()
            assert waited == ["c"]
            executions.handle_admitted("a")
            executions.handle_admitted("a")
            await trio.testing.wait_all_tasks_blocked()
            assert waited == ["c", "a"]
            assert standing(executions, "b") is Standing.PENDING
    assert waited == ["c", "a", "b"]
    assert standing(executions, "b") is Standing.UNKNOWN


def test_what_was_said_to_be_unknown_begins_no_more() -> None:
    executions = Executions(2, 1)
    for name in ("a", "b", "c"):
        assert not executions.was_unknown(name)
        assert standing(executions, name) is Standing.UNKNOWN
    assert [executions.was_unknown(name) for name in ("a", "b", "c")] == [False, True, True]


def test_who_waits_for_it_may_be_cancelled() -> None:
    async def run() -> None:
        executions = Executions(8, 1)
        with executions.pending("a"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(executions.wait_begun, "a")
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel("the client left")
            assert standing(executions, "a") is Standing.PENDING

    trio.run(run)


def test_tombstones_are_found_by_the_next_life() -> None:
    journal = Values()
    first = Executions(2, 1, journal, is_whole=True)
    for name, until_ns in (("x", 5), ("a", 10), ("b", 20)):
        first.bury(name, Standing.GONE, f"why {name}", until_ns)
    after = Executions(2, 2, journal, is_whole=True)
    for executions in (first, after):
        found = executions.execution_of("b", 1, 19)
        assert (found.standing, found.reason) == (Standing.GONE, "why b")
        assert standing(executions, "a", now_ns=9) is Standing.GONE
        assert standing(executions, "x") is Standing.UNKNOWN, "there is room for two"
    assert standing(after, "a", now_ns=10) is Standing.UNKNOWN
    assert [name for name in journal.values() if "tombstone" in name] == ["tombstone b"]


def test_a_tombstone_of_an_earlier_boot_of_the_machine_is_not_kept_for_longer() -> None:
    journal = Values()
    Executions(2, 1, journal, is_whole=True).bury("a", Standing.GONE, "why", 10_000)
    after = Executions(2, 2, journal, True, 100)
    assert standing(after, "a", now_ns=99) is Standing.GONE
    assert standing(after, "a", now_ns=100) is Standing.UNKNOWN


def test_of_lives_that_the_journal_has_not_seen_nothing_is_known() -> None:
    journal = Values()
    for epoch in (4, 6, 9):
        executions = Executions(8, epoch, journal, is_whole=True)
        assert standing(executions, "r", epoch=3) is Standing.LOST
        for seen in range(4, epoch + 1):
            assert standing(executions, "r", epoch=seen) is Standing.UNKNOWN
    for torn in (Executions(8, 10, journal), Executions(8, 10), Executions(8, 10, Values())):
        assert standing(torn, "r", epoch=9) is Standing.LOST
        assert standing(torn, "r", epoch=10) is Standing.UNKNOWN
