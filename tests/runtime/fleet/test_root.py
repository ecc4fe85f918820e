"""A root with acting children: a port, a folder, connections passed, a tree, an end."""

import os
import pathlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import pytest
import trio

from triolet.engine.errors import BootRefused
from triolet.nurseries.processes.kernel import Kernel
from triolet.nurseries.tasks.service import open_service
from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.runtime.config import RuntimeTimes
from triolet.runtime.control.calls import (
    ControlCall,
    EngineState,
    Place,
    PlaceState,
    RestartedPlace,
    Role,
    ServerPlaces,
)
from triolet.runtime.control.client import ControlCallFailed, ask_run
from triolet.runtime.control.run_folder import find_run
from triolet.runtime.errors import (
    ControlCallRefused,
    NoEngineLeft,
    NoFrontendLeft,
    PortInUse,
    RunNotFound,
)
from triolet.runtime.events import (
    ChildFailed,
    ChildProgress,
    ChildReady,
    ChildStarting,
    Draining,
    RunEvent,
    Serving,
)
from triolet.runtime.fleet.platform import UnsupportedPlatform, check_platform
from triolet.runtime.fleet.root import Root, ServePlan, bind_listener

from ...checkpoints import cancel_at_nth_checkpoint
from ...leaks import check_no_leaks
from ...nurseries.child_programs import look_again
from ..acting import (
    ACTING_ENGINE,
    ACTING_FRONTEND,
    DEADLINE_S,
    ActingKernel,
    Diary,
    acting_settings,
    facts_of,
    running_kernel,
)


@pytest.fixture(autouse=True)
def runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The folder of all runs of this test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "triolet"


def plan_of(
    engine: str | list[str] = "ready",
    frontend: str | list[str] = "ready",
    changes: dict[str, Any] | None = None,
    **options: Any,
) -> ServePlan:
    engines = [engine] if isinstance(engine, str) else engine
    frontends = [frontend] if isinstance(frontend, str) else frontend
    acts = {rank: [act] for rank, act in enumerate(frontends)}
    settings = attrs.evolve(
        acting_settings(*[[act] for act in engines]), model_name="m", frontends=len(frontends)
    )
    defaults: dict[str, Any] = {
        "settings": attrs.evolve(settings, **changes or {}),
        "frontend_settings": msgspec.json.encode(acts).decode(),
        "version": "0",
        "port": 0,
        "engine_module": ACTING_ENGINE,
        "frontend_module": ACTING_FRONTEND,
    }
    return ServePlan(**{**defaults, **options})


@attrs.define(eq=False)
class Bed:
    root: Root
    diary: Diary
    url: str

    async def say(self) -> str:
        """What a client is answered."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        stream = await trio.open_tcp_stream(host, int(port))
        async with stream:
            return (await stream.receive_some(100)).decode()

    async def tree(self) -> ProcessTree:
        """Asked for again if the answer was too late."""
        while True:
            try:
                text = await ask_run(find_run(), ControlCall.TREE)
            except ControlCallFailed:
                continue
            return msgspec.json.decode(text, type=ProcessTree)

    async def restart(self, place: Place | None) -> list[RestartedPlace]:
        text = await ask_run(find_run(), ControlCall.RESTART, place)
        return msgspec.json.decode(text, type=dict[str, list[RestartedPlace]])["restarted"]

    async def tree_with(self, states: dict[str, str]) -> ProcessTree:
        """One in which the processes are these and in these states: "" for one that answers."""
        while True:
            tree = await self.tree()
            if states == {each.name: each.facts.get("state", "") for each in tree.processes}:
                return tree


def left_in(runs: pathlib.Path) -> list[str]:
    return os.listdir(runs) if runs.exists() else []


@asynccontextmanager
async def open_bed(plan: ServePlan, kernel: Kernel | None = None) -> AsyncIterator[Bed]:
    """A root over acting processes; by the real kernel these are processes."""
    diary = Diary()

    def tell(event: RunEvent) -> None:
        """What tests count is of engines and frontends."""
        if not getattr(event, "child", "").startswith("forms"):
            diary(event)

    root = Root(plan, tell, kernel=kernel or ActingKernel())
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with running_kernel(root.kernel), open_service(root.run, name="root") as service:
            yield Bed(root, diary, service.value)


def test_a_busy_port_is_told_with_the_way_out() -> None:
    with bind_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"127.0.0.1:{port}: Address already in use.*--port"):
            bind_listener("127.0.0.1", port)
    with pytest.raises(PortInUse, match=r"192\.0\.2\.1"):
        bind_listener("192.0.2.1", 0)


def test_an_address_with_colons_is_listened_on_as_such() -> None:
    with bind_listener("::1", 0) as listener:
        assert listener.family is socket.AF_INET6


async def test_nothing_is_spawned_when_the_port_is_taken(runs: pathlib.Path) -> None:
    with bind_listener("127.0.0.1", 0) as listener:
        diary = Diary()
        root = Root(plan_of(port=listener.getsockname()[1]), diary)
        with pytest.raises(PortInUse):
            await root.run()
    assert diary.told == []
    assert left_in(runs) == []


async def test_a_client_is_served_from_the_moment_of_the_start(runs: pathlib.Path) -> None:
    async with open_bed(plan_of()) as bed:
        assert await bed.say() == "0 2 1 0"
        (serving,) = bed.diary.of(Serving)
        assert serving.url == bed.url
        facts = find_run().facts
        assert (facts.url, facts.model, facts.run_id) == (bed.url, "m", bed.root.run_id)
        assert find_run().path.stat().st_mode & 0o777 == 0o700
    assert left_in(runs) == []
    with pytest.raises(RunNotFound, match="no server of this user is running"):
        find_run()


async def test_engines_and_frontends_hear_of_each_other() -> None:
    async with open_bed(plan_of()) as bed:
        await bed.diary.wait_for(ChildReady, 2)
        engine, frontend = (
            bed.root.engines.processes.ready[0],
            bed.root.frontends.processes.ready[0],
        )
        while not (await facts_of(engine))["memberships"].endswith("1 "):
            pass
        number = bed.root.engines.directory.snapshot().number
        while not (await facts_of(frontend))["memberships"].endswith(f"{number} "):
            pass


async def test_the_tree_joins_all_processes_and_shows_who_does_not_answer() -> None:
    async with open_bed(plan_of(engine=["ready", "deaf"])) as bed:
        while len(bed.root.engines.processes.ready) < 2:
            await bed.diary.wait_for(ChildReady, 3)
        tree = await bed.tree_with(
            {"frontend 0": "", "engine 0": "", "engine 1": "does not answer", "forms 0": ""}
        )
    assert (tree.name, tree.facts["model"]) == ("root", "m")
    assert tree.tasks is not None
    assert all(process.pid > 0 for process in tree.processes)


async def test_the_tree_shows_what_still_boots() -> None:
    async with open_bed(plan_of(engine=["ready", "hang"])) as bed:
        while {event.child for event in bed.diary.of(ChildProgress)} < {"engine 0", "engine 1"}:
            await look_again()
        states = {"frontend 0": "", "engine 0": "", "engine 1": "", "forms 0": ""}
        tree = await bed.tree_with(states)
    places = {process.name: process for process in tree.processes}
    assert list(places) == ["frontend 0", "engine 0", "engine 1", "forms 0"]
    assert "phase" not in places["engine 0"].facts
    assert (places["engine 1"].facts["phase"], places["engine 1"].facts["done"]) == ("load", "50%")
    assert places["engine 1"].pid > 0


async def test_spares_are_in_the_tree_and_ours_to_reap() -> None:
    async with open_bed(plan_of(changes={"spare_engines": 1, "spare_frontends": 1})) as bed:
        fleets = (bed.root.frontends, bed.root.engines)
        for fleet in fleets:
            fleet.processes.spares.settle_s = 0.0
        warm = {"spare frontend 0": "warm", "spare engine 0": "warm"}
        spares: dict[str, object] = {}
        while spares != warm:
            tree = await bed.tree()
            spares = {
                process.name: process.facts["phase"]
                for process in tree.processes
                if process.name.startswith("spare")
            }
        assert {process.pid for process in tree.processes} == bed.root.to_reap()


async def test_each_child_is_known_from_its_spawn_on() -> None:
    booting: list[list[str]] = []
    ready: list[str] = []
    all_ready = trio.Event()

    def look(event: object) -> None:
        if isinstance(event, ChildReady):
            ready.append(event.child)
            if {"frontend 0", "engine 0"} <= set(ready):
                all_ready.set()
        if isinstance(event, ChildStarting):
            fleets = (root.frontends, root.engines)
            booting.append(
                [f"{f.processes.role} {rank}" for f in fleets for rank in f.processes.booting]
            )

    root = Root(plan_of(), look, kernel=ActingKernel())
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with running_kernel(root.kernel), open_service(root.run, name="root"):
            assert [len(names) for names in booting[:2]] == [1, 2]
            assert booting[1] == ["frontend 0", "engine 0"]
            await all_ready.wait()  # an acting frontend serves without an engine
            assert root.frontends.processes.booting == root.engines.processes.booting == {}


async def test_a_drain_serves_out_and_is_told() -> None:
    async with open_bed(plan_of(frontend="keep")) as bed:
        client = await trio.open_tcp_stream("127.0.0.1", int(bed.url.rpartition(":")[2]))
        async with client:
            assert await client.receive_some(100) == b"0 2 1 0"
            await bed.root.drain()
            assert await client.receive_some(100) == b""
        (draining,) = bed.diary.of(Draining)
        assert draining.grace_s == bed.root.plan.settings.times.grace_s
        assert not bed.root.any_failed()


async def test_a_drain_ends_with_the_grace() -> None:
    async with open_bed(
        plan_of(frontend=["deaf", "ready"], changes={"times": RuntimeTimes(grace_s=0.1)})
    ) as bed:
        await bed.diary.wait_for(ChildReady, 3)
        for _ in range(2):
            client, server = socket.socketpair()  # one of them goes to the deaf one
            with client, server:
                await bed.root.frontends.connections.pass_connection(server)
        await bed.root.drain()


async def test_what_was_given_up_is_in_the_tree_and_begins_anew_when_told() -> None:
    async with open_bed(plan_of(engine=["raise", "ready"], frontend=["ready", "raise"])) as bed:
        await bed.diary.wait_for(ChildFailed, 2)
        facts = (await bed.tree()).facts
        for name in ("engine 0", "frontend 1"):
            assert str(facts[name]).startswith("failed: it died too often; the last time it exited")
        assert bed.root.any_failed()
        restarted = await bed.restart(None)
        assert restarted == [
            RestartedPlace(place, EngineState.FAILED)
            for place in (Place(Role.FRONTEND, 1), Place(Role.ENGINE, 0))
        ]
        await bed.diary.wait_for(ChildFailed, 4)  # they act as before


async def test_what_runs_begins_anew_when_told_by_name() -> None:
    async with open_bed(plan_of()) as bed:
        await bed.diary.wait_for(ChildReady, 2)
        engine, frontend = Place(Role.ENGINE, 0), Place(Role.FRONTEND, 0)
        assert await bed.restart(engine) == [RestartedPlace(engine, EngineState.READY)]
        assert await bed.restart(frontend) == [RestartedPlace(frontend, EngineState.READY)]
        await bed.diary.wait_for(ChildReady, 4)
        assert await bed.say()


async def test_places_are_as_they_are_now() -> None:
    async with open_bed(plan_of(engine=["ready", "raise"], frontend=["ready", "late"])) as bed:
        await bed.diary.wait_for(ChildFailed)
        await bed.diary.wait_for(ChildProgress)
        text = await ask_run(find_run(), ControlCall.PLACES)
        places = msgspec.json.decode(text, type=ServerPlaces)
        engines, frontends = bed.root.engines.processes, bed.root.frontends.processes
        assert places.places == [
            PlaceState(Place(Role.ENGINE, 0), EngineState.READY, engines.ready[0].epoch),
            PlaceState(Place(Role.ENGINE, 1), EngineState.FAILED, 0, engines.failed[1]),
            PlaceState(Place(Role.FRONTEND, 0), EngineState.READY, frontends.ready[0].epoch),
            PlaceState(Place(Role.FRONTEND, 1), EngineState.STARTING, frontends.booting[1].epoch),
        ]
        assert places.is_linked
        assert places.restart_s > bed.root.plan.settings.engine.boot_timeout_s


async def test_what_cannot_be_restarted_is_refused_in_a_sentence() -> None:
    async with open_bed(plan_of(engine=["ready", "ready"])) as bed:
        for place, sentence in (
            (Place(Role.ENGINE, 7), "^there is no engine 7: this server has engine 0 to 1$"),
            (Place(Role.FRONTEND, -1), "no frontend -1: this server has frontend 0 alone$"),
            (None, "^nothing was given up; to restart what runs, name"),
        ):
            with pytest.raises(ControlCallRefused, match=sentence):
                await bed.restart(place)


async def test_a_lost_engine_is_remembered_for_the_exit_code() -> None:
    async with open_bed(plan_of(engine=["raise", "ready"])) as bed:
        await bed.diary.wait_for(ChildFailed)
        assert bed.root.any_failed()
        assert await bed.say()


@pytest.mark.parametrize(
    ("acts", "error"),
    [
        ({"engine": "raise"}, NoEngineLeft),
        ({"engine": "refuse"}, BootRefused),
        ({"frontend": "refuse"}, BootRefused),
        ({"frontend": "raise"}, NoFrontendLeft),
    ],
    ids=str,
)
async def test_what_ends_a_root_comes_bare(
    acts: dict[str, Any], error: type[Exception], runs: pathlib.Path
) -> None:
    with pytest.raises(error):
        async with open_bed(plan_of(**acts)):
            await trio.sleep_forever()
    assert left_in(runs) == []


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13, 21, 34, 55, 89])
async def test_cancelled_at_any_point_it_leaves_nothing(n: int, runs: pathlib.Path) -> None:
    async def start_and_end() -> None:
        root = Root(plan_of(), Diary(), kernel=ActingKernel())
        async with running_kernel(root.kernel), open_service(root.run, name="root"):
            pass

    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        await cancel_at_nth_checkpoint(start_and_end, n)
    assert left_in(runs) == []


def test_this_system_will_do() -> None:
    check_platform()


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UnsupportedPlatform) as caught:
        check_platform("darwin", object())
    assert "darwin" in str(caught.value)
    assert "os.pidfd_open" in str(caught.value)
