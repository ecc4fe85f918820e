"""Form processes, for real: what they answer, whatever dies, and that forms wait for them."""

import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from triolet.engine.config import EngineSettings
from triolet.engine.errors import InvalidParameter
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.nurseries.processes.orphans import child_pids
from triolet.nurseries.processes.spares import SPARE
from triolet.nurseries.processes.watched import Watch
from triolet.nurseries.tasks.service import open_service
from triolet.runtime.config import RuntimeSettings
from triolet.runtime.errors import FormsUnavailable
from triolet.runtime.events import ChildReady
from triolet.runtime.fleet.fleet_parts import FleetParts
from triolet.runtime.fleet.form_fleet import FormFleet
from triolet.runtime.forms.form_client import WAIT_S, FormClient
from triolet.runtime.forms.form_queue import FormQueue

from ...leaks import check_no_leaks
from ..acting import DEADLINE_S, HASTY, Diary, facts_of, process_of

pytestmark = pytest.mark.slow

SERVED = StructuredOutputs.json({"type": "object", "properties": {"a": {"type": "integer"}}})
REFUSED = StructuredOutputs.json({"type": "object", "not": {}})
# Patterns that are tried: a second or so of a processor.
SLOW = StructuredOutputs.json(
    {
        "type": "object",
        "properties": {
            name: {"type": "string", "pattern": f"^(?:[a-z]{{1,50}}-?){{45}}{name}$"}
            for name in ("a", "b")
        },
    }
)


@attrs.define(eq=False)
class Bed:
    fleet: FormFleet
    client: FormClient
    diary: Diary

    async def check(self, form: StructuredOutputs, principal: str = "") -> str:
        """Its refusal, empty for one that is served."""
        try:
            await self.client.check(form, principal)
        except InvalidParameter as refusal:
            return refusal.reason
        return ""

    def pid(self) -> int:
        return process_of(self.fleet.processes.ready[0]).pid

    async def spares(self) -> list[int]:
        """The copies that wait for a form, as the tree lists them."""
        tree = await self.fleet.processes.ready[0].tree()
        assert all(each.name.startswith(SPARE) for each in tree.processes)
        return [each.pid for each in tree.processes]

    async def send_to_copy_in_check(self, number: int) -> int:
        """The copy that checks a form, and gets this signal."""
        while True:
            for pid in set(child_pids(self.pid())) - set(await self.spares()):
                with contextlib.suppress(ProcessLookupError):  # that of the check before has ended
                    os.kill(pid, number)
                    return pid
            await trio.testing.wait_all_tasks_blocked(0.001)

    def forget(self) -> None:
        """Check everything anew."""
        self.client.queue = FormQueue()


@asynccontextmanager
async def open_bed() -> AsyncIterator[Bed]:
    settings = RuntimeSettings(
        engine=EngineSettings(model="none"), supervision=attrs.evolve(HASTY, restart_limit=1000)
    )
    diary, client = Diary(), FormClient()
    fleet = FormFleet(
        count=1,
        parts=FleetParts(settings, diary),
        on_link=lambda _, link: client.handle_link(link),
    )
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with (
            open_service(client.run, name="form-checks"),
            open_service(fleet.processes.run, name="forms"),
        ):
            yield Bed(fleet, client, diary)


async def test_forms_wait_for_the_process_and_are_answered() -> None:
    async with open_bed() as bed:
        assert await bed.check(SERVED) == ""
        assert await bed.check(REFUSED) == (
            "cannot be served: schemas with `not` are not supported"
        )
        assert await bed.check(StructuredOutputs.regex("(")) != ""
        while child_pids(bed.pid()) != await bed.spares():  # one waits for the next form
            await trio.testing.wait_all_tasks_blocked(0.001)
        facts = await facts_of(bed.fleet.processes.ready[0])
        assert facts["checked"] == 3
        assert facts["checks that died"] == 0


async def test_a_process_that_is_killed_is_replaced_and_its_forms_checked_again() -> None:
    async with open_bed() as bed:
        await bed.check(SERVED)
        for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL):
            bed.forget()
            os.kill(bed.pid(), number)
            assert await bed.check(SERVED) == ""
        assert len(bed.diary.of(ChildReady)) == 4


async def test_a_check_that_is_killed_or_stopped_begins_again() -> None:
    async with open_bed() as bed:
        await bed.check(SERVED)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bed.check, SLOW)
            for number in (signal.SIGKILL, signal.SIGSTOP):
                copy = await bed.send_to_copy_in_check(number)
                while copy in child_pids(bed.pid()):
                    await trio.testing.wait_all_tasks_blocked(0.001)
        assert bed.client.queue.verdict(SLOW, trio.current_time()) is not None
        assert len(bed.diary.of(ChildReady)) == 1


async def test_without_a_process_a_form_is_answered_by_come_back() -> None:
    client = FormClient(wait_s=0.0)
    async with open_service(client.run, name="form-checks"):
        with pytest.raises(FormsUnavailable):
            await client.check(SERVED, "")
        assert client.queue.statistics() == {"waiting": 0, "checked": 0}


async def test_a_check_that_takes_too_long_is_said_to_be_under_way(
    autojump_clock: trio.testing.MockClock,
) -> None:
    client = FormClient()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        async with open_service(client.run, name="form-checks"):
            client.handle_link(ours)
            with pytest.raises(FormsUnavailable, match="its check has not ended yet"):
                await client.check(SERVED, "")
            assert client.queue.statistics() == {"waiting": 0, "checked": 1}
    assert trio.current_time() >= WAIT_S


async def test_a_process_that_is_watched_says_what_it_checked() -> None:
    said = Diary()
    async with open_bed() as bed:
        bed.fleet.on_watched = said
        await bed.check(SERVED)
        bed.fleet.processes.ready[0].control.publish(Watch(1))
        text = await said.wait_for(str)
    assert '"checked":1' in text
