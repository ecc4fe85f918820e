"""Signals by place: to the process that is there, and refusals that say what there is."""

import pathlib
import signal

import msgspec
import pytest

from triolet.nurseries.processes.kernel import KERNEL
from triolet.runtime.control.calls import ControlCall, ControlQuestion, Signal, SignalOrder
from triolet.runtime.control.client import ask_run
from triolet.runtime.control.run_folder import find_run
from triolet.runtime.errors import ControlCallRefused
from triolet.runtime.events import ChildFailed, ChildGone, ChildReady

from ...nurseries.child_programs import look_again
from ..acting import dummy_process, process_of
from ..fleet.test_root import open_bed, plan_of


@pytest.fixture(autouse=True)
def runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


async def send(place: str, signal: Signal, pid: int = 0) -> SignalOrder:
    order = SignalOrder(place, signal, pid)
    text = await ask_run(find_run(), ControlCall.SIGNAL, order=order)
    return msgspec.json.decode(text, type=SignalOrder)


def state_of(pid: int) -> str:
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


@pytest.mark.slow
async def test_a_process_is_stopped_continued_and_killed() -> None:
    async with open_bed(plan_of(), KERNEL) as bed:
        pid = process_of(bed.root.frontends.processes.ready[0]).pid
        assert await send("frontend 0", Signal.STOP) == SignalOrder("frontend 0", Signal.STOP, pid)
        while state_of(pid) != "T":
            await look_again()
        await send("frontend 0", Signal.CONTINUE, pid)
        while state_of(pid) == "T":
            await look_again()
        await send("frontend 0", Signal.KILL, pid)
        assert "SIGKILL" in (await bed.diary.wait_for(ChildGone)).cause
        await bed.diary.wait_for(ChildReady, 3)
        killed = SignalOrder("frontend 0", Signal.KILL, pid)
        assert await send("frontend 0", Signal.KILL, pid) == killed  # done already
        with pytest.raises(ControlCallRefused, match="another process by now"):
            await send("frontend 0", Signal.STOP, pid)


@pytest.mark.slow
async def test_a_worker_has_a_place_of_its_own() -> None:
    with dummy_process() as worker:
        async with open_bed(plan_of(engine=f"workers {worker.pid}"), KERNEL) as bed:
            await bed.diary.wait_for(ChildReady, 2)
            assert bed.root.engines.processes.ready[0].targets().keys() == {
                "engine 0",
                "engine 0 worker 0",
            }
            with pytest.raises(ControlCallRefused, match="there is no 'engine 0 worker 1'"):
                await send("engine 0 worker 1", Signal.KILL)
            assert (await send("engine 0 worker 0", Signal.KILL)).pid == worker.pid
            assert worker.wait(10) == -signal.SIGKILL


async def test_what_cannot_be_sent_is_refused() -> None:
    async with open_bed(plan_of(engine=["ready", "raise"])) as bed:
        await bed.diary.wait_for(ChildFailed)
        await bed.diary.wait_for(ChildReady, 2)
        for place, pid, code, words in (
            ("engine 7", 0, "place_not_found", "this server has: frontend 0, engine 0, engine 1"),
            ("root", 0, "place_not_found", "there is no 'root'"),
            ("engine 1", 0, "no_process", "no process now"),
            ("engine 0", 1, "process_changed", "another process by now"),
        ):
            with pytest.raises(ControlCallRefused, match=words):
                await send(place, Signal.KILL, pid)
            with pytest.raises(ControlCallRefused) as refused:
                await bed.root._answer(
                    ControlQuestion(ControlCall.SIGNAL, order=SignalOrder(place, Signal.KILL, pid))
                )
            assert refused.value.code == code
        assert {gone.child for gone in bed.diary.of(ChildGone)} == {"engine 1"}
