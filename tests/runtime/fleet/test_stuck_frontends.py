"""Frontends that outlive SIGKILL: their home waits for their end, their clients not for ever."""

import re
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest
import trio

from triolet.nurseries.processes.process import LadderTimes
from triolet.runtime.config import ReplaySettings, RuntimeTimes
from triolet.runtime.control.calls import EngineState
from triolet.runtime.events import ChildFailed, ChildReady
from triolet.transports.takeover.memory import map_slots
from triolet.transports.takeover.slot import ConnectionSlot, EndForm

from ...nurseries.child_programs import look_again
from ..acting import ActingKernel, facts_of
from ..continuity.test_held_connections import Connect, end_of, serving
from .test_frontend_fleet import Bed, answer_of

AT_ONCE = RuntimeTimes(ladder=LadderTimes(ask_s=0, terminate_s=0, kill_s=0.05))


@asynccontextmanager
async def serving_alone(replay_wait_s: float) -> AsyncIterator[tuple[Bed, Connect]]:
    """One frontend, which keeps its connections open."""
    replay = ReplaySettings(replay_wait_s=replay_wait_s)
    async with serving(["keep"], times=AT_ONCE, replay=replay) as (bed, connect):
        bed.connections.unavailable_s = 0.0
        yield bed, connect


@contextmanager
def stuck(bed: Bed) -> Iterator[None]:
    """Kill the frontend, which is not gone before the block is left."""
    kernel = bed.fleet.parts.kernel
    assert isinstance(kernel, ActingKernel)
    kernel.exits = trio.Event()
    bed.fleet.processes.ready[0].signal(signal.SIGKILL)
    bed.fleet.processes.restart(0)
    yield
    kernel.exits.set()


async def test_its_streams_wait_and_go_on_when_it_is_gone() -> None:
    async with serving_alone(replay_wait_s=3600.0) as (bed, connect):
        client = await connect()
        assert await answer_of(client) == "0 1 1 0"
        with stuck(bed):
            failed = await bed.diary.wait_for(ChildFailed)
            assert "0.05 s after SIGKILL; it hangs in the kernel" in failed.cause
            assert bed.fleet.processes.place(0).state is EngineState.FAILED
            new = await connect()
            assert (await end_of(new)).startswith("HTTP/1.1 503 ")
        assert await answer_of(client) == "0 2 1 0 again"
        assert bed.fleet.processes.failed == {}
        noted = (await facts_of(bed.fleet.processes.ready[0]))["journal"]
        assert noted == "noted: 1 ", "it has what was left"


async def rest_of(client: socket.socket) -> str:
    """All bytes up to the end of a connection, a letter each."""
    heard = ""
    with suppress(ConnectionResetError):
        while True:
            await trio.lowlevel.wait_readable(client)
            if not (more := client.recv(4096)):
                return heard
            heard += more.decode("latin-1")
    return f"{heard} reset"


def note(bed: Bed, slot: int, written: bytes, ending: EndForm) -> None:
    """Have the slot say what its frontend, which only acts, has written and not noted."""
    memory = bed.connections.held.handle_starting(0, 0)["connections"]
    assert memory is not None
    with map_slots(memory) as slots:
        noted = ConnectionSlot(slots.view(slot))
        noted.publish(0, b"state", written, kept_from=0, received=0, ending=ending)
        noted.release()


@pytest.mark.parametrize(
    ("ending", "asks", "last"),
    [
        (EndForm.UNANSWERED, False, "$"),
        (EndForm.UNANSWERED, True, r'HTTP/1.1 503 [^$]*retry-after: 5[^$]*"code":"no_frontend"}}$'),
        (EndForm.EVENTS, True, "[0-9a-f]+\r\nevent: error\ndata: [^\n]*frontend_stuck.*\n\n\r\n$"),
        (EndForm.FRAMES, False, "\x88.\x03\xf5the frontend of this socket hangs in the kernel"),
        (EndForm.CUT, False, " reset$"),
    ],
)
async def test_its_streams_end_by_an_error_if_it_is_there_for_too_long(
    ending: EndForm, asks: bool, last: str
) -> None:
    async with serving_alone(replay_wait_s=0.0) as (bed, connect):
        client = await connect()
        client.send(b"GET / HTTP/1.1\r\n\r\n" * asks)
        assert await answer_of(client) == "0 1 1 0"
        note(bed, 0, b"0 1 1 0, and the rest.", ending)
        with stuck(bed):
            rest = "" if ending is EndForm.CUT else ", and the rest."
            assert re.match(rest + last, await rest_of(client), re.DOTALL)
            while bed.connections.held.ranks():
                await look_again()
        await bed.diary.wait_for(ChildReady, 2)
        assert await answer_of(await connect()) == "0 2 2 0"
        assert (await facts_of(bed.fleet.processes.ready[0]))["journal"] == "noted: 1 "


async def test_bytes_that_no_slot_speaks_of_end_by_a_reset() -> None:
    async with serving_alone(replay_wait_s=0.0) as (bed, connect):
        client = await connect()
        assert await answer_of(client) == "0 1 1 0"
        with stuck(bed):
            assert await end_of(client) == " reset"
        await bed.diary.wait_for(ChildReady, 2)


async def test_an_order_begins_an_empty_home_beside_it() -> None:
    async with serving_alone(replay_wait_s=3600.0) as (bed, connect):
        client = await connect()
        assert await answer_of(client) == "0 1 1 0"
        note(bed, 0, b"0 1 1 0, and the rest.", EndForm.UNANSWERED)
        with stuck(bed):
            await bed.diary.wait_for(ChildFailed)
            bed.fleet.restart(0)
            assert await end_of(client) == ", and the rest."
            await bed.diary.wait_for(ChildReady, 2)
            assert (await facts_of(bed.fleet.processes.ready[0]))["journal"] == "noted: "
