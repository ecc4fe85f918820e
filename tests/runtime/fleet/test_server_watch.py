"""The live view of a server: a snapshot, changes, deaths; by the run's socket and frontends."""

import pathlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import pytest
import trio
import trio.testing

from triolet.nurseries.tasks.service import open_service
from triolet.runtime.control.calls import ControlCall, News, Signal, SignalOrder
from triolet.runtime.control.client import ask_run, watch_run
from triolet.runtime.control.run_folder import find_run
from triolet.runtime.events import (
    ChildFailed,
    ChildGone,
    ChildHung,
    ChildPhaseEnded,
    ChildReady,
    ChildStarting,
    ChildStopped,
    HostHeard,
    HostJoined,
    HostLost,
    HostSaid,
    HostSilent,
    RunEvent,
    ignore_event,
)
from triolet.runtime.fleet.server_rows import ServerRows, root_row
from triolet.runtime.fleet.server_watch import FrontendViews, ServerWatch, mark_of
from triolet.runtime.launch.child import ChildPlan
from triolet.runtime.launch.child_control import ChildControl
from triolet.runtime.launch.local_child import LocalChild
from triolet.runtime.messages import ServerNews, WatchServer
from triolet.transports.control.channel import ControlChannel

from ...nurseries.child_programs import look_again
from ..acting import process_of
from .test_frontend_fleet import Bed as FrontendBed
from .test_root import Bed, open_bed, plan_of


@pytest.fixture(autouse=True)
def runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@attrs.define(eq=False)
class Viewer:
    """What a viewer knows, as the page keeps it: rows by place, and marks."""

    rows: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    marks: list[dict[str, Any]] = attrs.field(factory=list)
    heard: list[int] = attrs.field(factory=list)
    snapshots: list[dict[str, Any]] = attrs.field(factory=list)
    _more: trio.Event = attrs.field(factory=trio.Event)

    def handle(self, news: News) -> None:
        for text in news.texts:
            change = msgspec.json.decode(text)
            if news.is_whole:
                self.snapshots.append(change)
            for row in change.get("processes", ()):
                self.rows.setdefault(row["place"], {}).update(row)
            for place in change.get("gone", ()):
                del self.rows[place]
            self.marks += change.get("marks", ())
            if "engine heard" in change:
                self.heard.append(change["engine heard"])
        self._more.set()
        self._more = trio.Event()

    async def wait_for(self, kind: str, place: str) -> dict[str, Any]:
        while True:
            for mark in self.marks:
                if (mark["kind"], mark["place"]) == (kind, place):
                    return mark
            await self._more.wait()

    async def wait_state(self, place: str, state: str) -> dict[str, Any]:
        while self.rows.get(place, {}).get("state") != state:
            await self._more.wait()
        return dict(self.rows[place])

    async def wait_heard(self, count: int) -> None:
        while len(self.heard) < count:
            await self._more.wait()


@asynccontextmanager
async def watching(bed: Bed) -> AsyncIterator[Viewer]:
    viewer = Viewer()

    async def watch(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await watch_run(find_run(), viewer.handle)

    async with open_service(watch, name="viewer"):
        yield viewer


@pytest.mark.slow
async def test_a_viewer_sees_all_places_and_a_death_at_once() -> None:
    async with open_bed(plan_of(engine=["ready", "raise"])) as bed:
        await bed.diary.wait_for(ChildFailed)
        async with watching(bed) as viewer:
            engine = await viewer.wait_state("engine 0", "ready")
            assert engine["pid"] == process_of(bed.root.engines.processes.ready[0]).pid
            assert (engine["parent"], engine["role"], engine["restarts"]) == ("root", "engine", 0)
            assert viewer.rows["root"]["tasks"]
            failed = await viewer.wait_state("engine 1", "failed")
            assert (failed["pid"], failed["can"]) == (0, [])
            assert failed["reason"]
            snapshot = viewer.snapshots[0]
            assert snapshot["run"] == bed.root.run_id
            assert {mark["kind"] for mark in snapshot["marks"]} >= {"starting", "ready", "failed"}
            await viewer.wait_heard(1)
            viewer.marks.clear()
            order = SignalOrder("engine 0", Signal.KILL, engine["pid"])
            await ask_run(find_run(), ControlCall.SIGNAL, order=order)
            died = await viewer.wait_for("died", "engine 0")
            assert "SIGKILL" in died["text"]
            await viewer.wait_for("ready", "engine 0")
            successor = await viewer.wait_state("engine 0", "ready")
            assert (successor["restarts"], successor["epoch"] > engine["epoch"]) == (1, True)
            await viewer.wait_heard(2)  # the new one is watched as well
        while bed.root.watch.is_watched:
            await look_again()


@pytest.mark.slow
async def test_a_second_viewer_has_a_snapshot_of_its_own() -> None:
    async with open_bed(plan_of()) as bed, watching(bed) as first:
        await first.wait_heard(1)
        async with watching(bed) as second:
            await second.wait_heard(1)
            await second.wait_state("frontend 0", "ready")
        assert first.heard[:2] == [1, 2]


async def news_of_frontend(bed: Bed, pid: int) -> dict[str, Any]:
    """What the frontend with this pid says once it had news."""
    while True:
        for each in (await bed.tree()).processes:
            if each.pid == pid and each.facts.get("news", 0):
                return dict(each.facts)


@pytest.mark.slow
async def test_a_frontend_with_viewers_is_sent_news_in_each_of_its_lives() -> None:
    async with open_bed(plan_of(frontend=["watches"])) as bed:
        for lives in (1, 2):
            await bed.diary.wait_for(ChildReady, 1 + lives)
            pid = process_of(bed.root.frontends.processes.ready[0]).pid
            assert (await news_of_frontend(bed, pid))["snapshots"] == 1
            order = SignalOrder("frontend 0", Signal.KILL, pid)
            await ask_run(find_run(), ControlCall.SIGNAL, order=order)


GO_ON = -1


@pytest.mark.parametrize(
    ("orders", "is_watched"),
    [([1, 0], False), ([1, 2, GO_ON, 0], False), ([1, GO_ON, 0, 2], True), ([1, 0, 2], True)],
)
async def test_the_latest_order_of_a_frontend_counts(orders: list[int], is_watched: bool) -> None:
    fleet = FrontendBed((["none"],)).fleet.processes
    watch = ServerWatch({}, ServerRows((fleet,), lambda: root_row(0)))
    views = FrontendViews(watch, fleet)
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        control = ControlChannel(left, sends=[ServerNews])
        async with trio.open_nursery() as fleet._nursery:
            plan = ChildPlan(
                kind=fleet.kind,
                rank=0,
                epoch=1,
                init=b"",
                report=lambda event: None,
                on_event=ignore_event,
                times=fleet.parts.times,
            )
            child = LocalChild(plan)
            child.control = ChildControl("frontend 0", control)
            fleet._children[0] = child
            fleet.places[0].handle_starting(1)
            fleet.places[0].handle_ready(0.0)
            for number in orders:
                if number == GO_ON:
                    await trio.testing.wait_all_tasks_blocked()
                else:
                    views.handle_order(0, WatchServer(number))
            await trio.testing.wait_all_tasks_blocked()
            assert watch.is_watched is is_watched
            views.handle_order(0, WatchServer(0))
            await trio.testing.wait_all_tasks_blocked()
            assert not watch.is_watched


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (ChildStarting("engine 0", 3), "starting"),
        (ChildReady("engine 0", 3, 0.5), "ready"),
        (ChildHung("engine 0", 3, "stands still"), "hung"),
        (ChildGone("engine 0", 3, "was killed"), "died"),
        (ChildStopped("engine 0", 3), "ended"),
        (ChildFailed("engine 0", "died too often"), "failed"),
        (ChildPhaseEnded("engine 0", "load", 1.0), None),
        (HostSaid("b", "a line", is_warning=True), None),
    ],
)
def test_marks_are_of_lives(event: RunEvent, kind: str | None) -> None:
    mark = mark_of(event)
    assert (mark and mark["kind"]) == kind
    assert mark is None or mark["place"] == "engine 0"


def test_marks_of_hosts_name_the_cause_of_their_end() -> None:
    events: list[RunEvent] = [
        HostJoined("b", [4, 5]),
        HostSilent("b"),
        HostHeard("b"),
        HostLost("b", "lost: it says nothing"),
        HostLost("b", "left"),
    ]
    marks = [mark_of(event) for event in events]
    assert [mark and (mark["place"], mark["kind"], mark["text"]) for mark in marks] == [
        ("host b", "joined", "with engine 4, engine 5"),
        ("host b", "silent", ""),
        ("host b", "heard", "again"),
        ("host b", "lost", "it says nothing"),
        ("host b", "left", ""),
    ]
    died = {"place": "engine 4", "epoch": 9, "kind": "died", "text": "was killed"}
    assert mark_of(HostSaid("b", "engine 4: was killed", is_warning=True, mark=died)) == died


async def test_rows_of_other_machines_are_passed_on_unmeasured_and_orders_to_them() -> None:
    host = {"place": "host b", "pid": 1, "state": "silent", "since": 7}
    ordered: list[int] = []
    fleet = FrontendBed((["none"],)).fleet.processes
    rows = ServerRows((fleet,), lambda: root_row(0), elsewhere=lambda: [host])
    watch = ServerWatch({}, rows, on_order=ordered.append)
    async with open_service(watch.run, name="watch"):
        with watch.view() as queue:
            (text, *_), is_whole = attrs.astuple(await queue.take())
    assert is_whole
    found = {row["place"]: row for row in msgspec.json.decode(text)["processes"]}
    assert found["host b"] == host
    assert found["root"]["parent"] is None
    assert ordered == [1, 0]
