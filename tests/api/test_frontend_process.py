"""The frontend process in this one, its root played by the test: orders, connections, reports."""

import json
import os
import pathlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence, Sized
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import attrs
import msgspec
import pytest
import trio
import trio.testing

from triolet.api import frontend_process
from triolet.api.application import Application
from triolet.api.counters import LAYOUT, ApiCounters, FrontendCounts, counts_of, numbers_of
from triolet.api.frontend_home import FrontendHome
from triolet.api.frontend_process import LOAD_PERIOD_S, FrontendProcess, LoadReports
from triolet.api.root_calls import RootCalls
from triolet.api.serving.server import open_queue_source
from triolet.api.settings import ServerSettings, ServeSettings, settings_to_text
from triolet.api.streams.foreign import ForeignStreams
from triolet.engine.config import EngineSettings
from triolet.engine.control_messages import Drain, TreeReply, TreeRequest
from triolet.fuzz.doubles.bed import Bed, open_bed
from triolet.nurseries.processes.child import ChildFds
from triolet.nurseries.processes.counter_page import open_counter_memory, open_counter_page
from triolet.nurseries.processes.progress_page import open_page
from triolet.nurseries.tasks.background import start_background_task
from triolet.nurseries.tasks.changes import Changes
from triolet.nurseries.tasks.service import ServiceEnded
from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.runtime.config import JournalSettings, RuntimeSettings
from triolet.runtime.fleet.membership import EngineDirectory
from triolet.runtime.frontend.adoption import AdoptedStream
from triolet.runtime.frontend.health import FrontendStatistics
from triolet.runtime.messages import (
    FRONTEND_TO_ROOT,
    ROOT_TO_FRONTEND,
    EngineMembership,
    ForeignCall,
    ForeignOutcome,
    ForeignReply,
    ForeignVerb,
    FrontendInit,
    FrontendLoad,
    FrontendReady,
    PassConnection,
)
from triolet.tests.live_tasks import find_background_task, find_tasks
from triolet.transports.control.channel import ControlChannel
from triolet.transports.control.handshake import (
    PeerRefused,
    perform_child_handshake,
    perform_parent_handshake,
)

from ..leaks import check_no_leaks, no_room_for_descriptors

# A test that is not over by then hangs.
DEADLINE_S = 60.0
TASKS = ("load-reports", "control", "engines-changed", "connections", "output-handler")


@pytest.fixture
def folder(null_folder: pathlib.Path) -> pathlib.Path:
    return null_folder


def settings_for(
    folder: pathlib.Path, journal: JournalSettings | None = None, **serve: Any
) -> ServerSettings:
    runtime = RuntimeSettings(
        engine=EngineSettings(model=str(folder), executor="null"),
        model_name="m",
        journal=JournalSettings() if journal is None else journal,
    )
    return ServerSettings(runtime=runtime, serve=ServeSettings(**serve))


@attrs.define(eq=False)
class FakeRoot:
    """The root's end of the control socket; `run` reads what the frontend reports."""

    control: ControlChannel
    raw: socket.socket
    loads: list[FrontendLoad] = attrs.field(factory=list)
    trees: list[ProcessTree] = attrs.field(factory=list)
    replies: list[ForeignReply] = attrs.field(factory=list)
    _more: trio.Event = attrs.field(factory=trio.Event)
    _passed: int = 0

    async def bring_up(
        self, settings: str, *, pid: int, fds: Sequence[int] = (), **init: Any
    ) -> FrontendReady:
        engines = EngineDirectory().handle_starting(0, 2)
        payload = FrontendInit(
            run_id=f"test-{os.urandom(4).hex()}",
            rank=0,
            epoch=1,
            settings=settings,
            engines=engines,
            **init,
        )
        ready = await perform_parent_handshake(
            self.control,
            msgspec.msgpack.encode(payload),
            who="frontend 0",
            role="frontend",
            pid=pid,
            boot_timeout_s=DEADLINE_S,
            fds=fds,
        )
        return msgspec.msgpack.decode(ready, type=FrontendReady)

    async def run(self) -> None:
        while True:
            message, _ = await self.control.receive()
            if isinstance(message, FrontendLoad):
                self.loads.append(message)
            elif isinstance(message, ForeignReply):
                self.replies.append(message)
            else:
                assert isinstance(message, TreeReply)
                self.trees.append(msgspec.json.decode(message.tree, type=ProcessTree))
            self._more.set()
            self._more = trio.Event()

    async def wait_load(self, **counts: int) -> None:
        """Until the newest report has these counts."""
        while not self.loads or any(
            getattr(self.loads[-1], name) != count for name, count in counts.items()
        ):
            await self._more.wait()

    async def wait_one(self, messages: Sized) -> None:
        """Until one of these has come."""
        while not messages:
            await self._more.wait()

    async def connect(self) -> trio.SocketStream:
        """A client whose connection was passed on."""
        client, server = socket.socketpair()
        self._passed += 1
        with server:
            await self.control.send(PassConnection(self._passed), [server.fileno()])
        return trio.SocketStream(trio.socket.from_stdlib_socket(client))

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and body of one request on a connection of its own."""
        async with await self.connect() as client:
            head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            await client.send_all(head.encode())
            answer = b"".join([part async for part in client])
        status, _, body = answer.partition(b"\r\n\r\n")
        return int(status.split()[1]), json.loads(body)

    async def tree(self) -> ProcessTree:
        count = len(self.trees)
        await self.control.send(TreeRequest(1))
        while len(self.trees) == count:
            await self._more.wait()
        return self.trees[-1]


@asynccontextmanager
async def open_pair() -> AsyncIterator[tuple[FakeRoot, ChildFds]]:
    with ExitStack() as owned:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        owned.enter_context(theirs)
        for end in (ours, theirs):
            end.setblocking(False)
        control = ControlChannel(ours, sends=ROOT_TO_FRONTEND, receives=FRONTEND_TO_ROOT)
        owned.enter_context(control)
        yield FakeRoot(control, ours), ChildFds(theirs, -1, -1)


@asynccontextmanager
async def open_frontend(folder: pathlib.Path, **init: Any) -> AsyncIterator[FakeRoot]:
    text = settings_to_text(settings_for(folder))
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_pair() as (root, fds), trio.open_nursery() as nursery:
            nursery.start_soon(frontend_process.main, fds)
            await root.bring_up(text, pid=os.getpid(), **init)
            nursery.start_soon(root.run)
            yield root
            nursery.cancel_scope.cancel("the test is over")


# ---- orders and reports


async def test_it_serves_connections_that_the_root_passes(folder: pathlib.Path) -> None:
    async with open_frontend(folder) as root:
        assert (await root.get("/live"))[0] == 200
        status, models = await root.get("/v1/models")
        assert (status, models["data"][0]["id"]) == (200, "m")
        await root.wait_load(connections_received=2, open_connections=0)


async def test_it_reports_changes_and_is_silent_otherwise(folder: pathlib.Path) -> None:
    async with open_frontend(folder) as root:
        await root.wait_load(open_connections=0)
        client = await root.connect()
        await root.wait_load(open_connections=1, connections_received=1)
        await client.aclose()
        await root.wait_load(open_connections=0)
        for place, load in enumerate(root.loads):
            assert load not in root.loads[:place]  # no report says what another has said


async def test_a_connection_is_received_when_it_is_open(folder: pathlib.Path) -> None:
    """Else a drain that begins between the two reports would take the frontend for idle."""
    async with open_frontend(folder) as root:
        while b"changes of the load" not in msgspec.json.encode(await root.tree()):
            pass  # the next change is reported at once
        async with await root.connect():
            await root.wait_load(connections_received=1)
            assert root.loads[-1].open_connections == 1


async def test_its_counters_are_summed_with_those_of_the_others(folder: pathlib.Path) -> None:
    theirs = FrontendCounts(
        edge=ApiCounters(connections=5), runtime=FrontendStatistics(requests_active=7)
    )
    with (
        open_page(1) as page,
        open_counter_memory(2) as memory,
        open_counter_page(memory.fd, 1, LAYOUT, numbers_of(theirs)) as other,
    ):
        fds, names = [page.fd, memory.fd], ["progress", "counters"]
        async with open_frontend(folder, fds=fds, descriptors=names) as root:
            assert await root.get("/load") == (200, {"server_load": 7})
        assert counts_of(other.total()).edge.connections == 5 + 1


async def test_membership_reaches_health_and_the_latest_wins(folder: pathlib.Path) -> None:
    async with open_frontend(folder) as root:
        directory = EngineDirectory()
        directory.handle_starting(0, 2)
        gone = directory.handle_gone(0, "was killed by SIGKILL")
        await root.control.send(gone)
        while "SIGKILL" not in json.dumps((await root.get("/health"))[1]):
            pass
        await root.control.send(EngineMembership(gone.number - 1, []))
        assert "SIGKILL" in json.dumps((await root.get("/health"))[1])


async def test_a_call_of_another_frontend_is_answered(folder: pathlib.Path) -> None:
    call = ForeignCall(
        caller=1,
        caller_epoch=2,
        call_id=5,
        frontend=0,
        verb=ForeignVerb.GET,
        response_id="resp_00" + "0" * 32,
        principal="",
    )
    async with open_frontend(folder) as root:
        await root.control.send(call)
        await root.wait_one(root.replies)
        assert root.replies[0].outcome is ForeignOutcome.NOT_FOUND


async def test_a_drain_is_ready_no_more_and_closes_idle_connections(folder: pathlib.Path) -> None:
    async with open_frontend(folder) as root:
        idle = await root.connect()
        await idle.send_all(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await idle.receive_some(10_000)  # it is kept alive, and waits for a next request
        await root.control.send(Drain())
        assert b"" in [await idle.receive_some(10_000) for _ in range(2)]
        await idle.aclose()
        status, body = await root.get("/ready")
        assert status == 503
        assert "draining" in json.dumps(body)
        await root.wait_load(open_connections=0)


async def test_one_can_be_born_draining(folder: pathlib.Path) -> None:
    async with open_frontend(folder, draining=True) as root:
        assert "draining" in json.dumps((await root.get("/ready"))[1])


async def test_the_tree_names_its_tasks(folder: pathlib.Path) -> None:
    async with open_frontend(folder) as root:
        tree = await root.tree()
        assert (tree.name, tree.pid, tree.facts["epoch"]) == ("frontend 0", os.getpid(), 1)
        assert tree.tasks is not None
        assert [name for name in TASKS if not find_tasks(tree.tasks, name)] == []


async def test_noise_and_orders_without_their_descriptor_are_dropped(folder: pathlib.Path) -> None:
    async with open_frontend(folder) as root:
        root.raw.send(b"\xffnoise")
        await root.control.send(PassConnection(1))
        assert (await root.get("/live"))[0] == 200
        await root.wait_load(connections_received=2)


async def test_a_connection_that_finds_no_room_is_counted_and_closed(folder: pathlib.Path) -> None:
    """Else the root would take it for one under way, for ever."""
    async with open_frontend(folder) as root:
        await root.wait_load(connections_received=0)
        client, server = socket.socketpair()
        with client:
            with server, no_room_for_descriptors():
                await root.control.send(PassConnection(1), [server.fileno()])
                await root.wait_load(connections_received=1)
            assert client.recv(1) == b""
        assert (await root.get("/live"))[0] == 200
        await root.wait_load(connections_received=2, open_connections=0)


async def test_orders_are_heard_while_no_connection_is_taken(folder: pathlib.Path) -> None:
    """A full queue resets newcomers; the control task never waits for it."""
    async with open_frontend(folder) as root:
        taker = find_background_task("connections")
        assert not taker.ended
        clients = [await root.connect() for _ in range(200)]
        await root.tree()
        await root.wait_load(connections_received=200)
        for client in clients:
            await trio.aclose_forcefully(client)
        await root.wait_load(open_connections=0)


async def run_process(control: ControlChannel, home: FrontendHome) -> None:
    """As `main`, but with a home that the test has made."""
    handshake = await perform_child_handshake(control, "frontend")
    init = msgspec.msgpack.decode(handshake.init, type=FrontendInit)
    process = FrontendProcess(init, control, home)
    await process.run(handshake, FrontendReady(input_endpoint="", output_endpoint=""))


@asynccontextmanager
async def open_made(
    folder: pathlib.Path, application_of: type[Application] = Application
) -> AsyncIterator[tuple[Bed, FakeRoot, FrontendHome, Callable[..., Awaitable[None]]]]:
    """A runtime, a root, a home on them, and what brings up a frontend process with that home."""
    async with (
        open_bed(folder) as bed,
        open_pair() as (root, fds),
        open_queue_source() as source,
        trio.open_nursery() as nursery,
    ):
        control = ControlChannel(fds.control, sends=FRONTEND_TO_ROOT, receives=ROOT_TO_FRONTEND)
        foreign = ForeignStreams(0, 1, 1, control.send)
        calls = RootCalls(control.send)
        application = application_of(bed.frontend, ServeSettings(), foreign, calls)
        where = FrontendReady(input_endpoint="", output_endpoint="")
        home = FrontendHome(bed.frontend, application, source, [], [], where)

        async def bring_up() -> None:
            nursery.start_soon(run_process, control, home)
            await root.bring_up("", pid=os.getpid())
            nursery.start_soon(root.run)

        with trio.fail_after(DEADLINE_S):
            yield bed, root, home, bring_up
            nursery.cancel_scope.cancel("the test is over")


@attrs.define(eq=False)
class SlowApplication(Application):
    """Rebuilding its responses takes as long as the test wants."""

    begun: trio.Event = attrs.field(factory=trio.Event, kw_only=True)
    go_on: trio.Event = attrs.field(factory=trio.Event, kw_only=True)

    async def adopt(self, streams: Iterable[AdoptedStream], keep_s: float) -> None:
        self.begun.set()
        await self.go_on.wait()
        await super().adopt(streams, keep_s)


async def test_it_is_ready_before_its_responses_are_rebuilt_and_clients_wait(
    folder: pathlib.Path,
) -> None:
    """Engines must not wait for that: their RESYNCs come with the link, which READY begins."""
    answers: list[int] = []
    answered = trio.Event()

    async def ask(root: FakeRoot) -> None:
        answers.append((await root.get("/live"))[0])
        answered.set()

    async with (
        trio.open_nursery() as nursery,
        open_made(folder, SlowApplication) as (_, root, home, bring_up),
    ):
        application = home.application
        assert isinstance(application, SlowApplication)
        await bring_up()
        await application.begun.wait()
        nursery.start_soon(ask, root)
        await root.tree()
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        application.go_on.set()
        await answered.wait()
        assert answers == [200]


@pytest.mark.parametrize("name", ["control", "load-reports", "engines-changed"])
async def test_without_one_of_its_tasks_it_ends(folder: pathlib.Path, name: str) -> None:
    ended = pytest.RaisesExc(ServiceEnded, match=name)
    with pytest.RaisesGroup(ended, flatten_subgroups=True):
        async with open_frontend(folder) as root:
            await root.tree()
            find_background_task(name).cancel("the test cancels it")
            await trio.sleep_forever()


# ---- ends


async def test_a_broken_tokenizer_is_refused_for_good(tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 320, "max_position_embeddings": 512}')
    (tmp_path / "tokenizer.json").write_text("{")
    text = settings_to_text(settings_for(tmp_path))
    refusal = pytest.RaisesExc(
        PeerRefused, match="tokenizer.json: is not JSON.*choose another model"
    )
    with check_no_leaks(), trio.fail_after(DEADLINE_S), pytest.RaisesGroup(refusal):
        async with open_pair() as (root, fds), trio.open_nursery() as nursery:
            nursery.start_soon(frontend_process.main, fds)
            await root.bring_up(text, pid=os.getpid())


# ---- reports of the load


SEND_S = 0.002


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ([], [(0, 0)]),
        ([(LOAD_PERIOD_S / 2, 1), (0, 2), (0, 3)], [(0, 0), (SEND_S + LOAD_PERIOD_S, 3)]),
        ([(1, 1), (0.001, 2)], [(0, 0), (1, 1), (1 + SEND_S + LOAD_PERIOD_S, 2)]),
        ([(1, 5), (0, 0)], [(0, 0)]),
    ],
    ids=["the first at once", "a burst is one", "one while another is sent", "taken back"],
)
async def test_reports_go_out_when_something_changed(
    changes: list[tuple[float, int]],
    reported: list[tuple[float, int]],
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each change is some seconds after the one before, and the number of streams then."""
    began_s, streams, looks = trio.current_time(), 0, 0
    sent: list[tuple[float, int]] = []

    def look() -> FrontendLoad:
        nonlocal looks
        looks += 1
        return FrontendLoad(0, streams, 0)

    async def send(load: FrontendLoad) -> None:
        await trio.sleep(SEND_S)
        sent.append((round(trio.current_time() - SEND_S - began_s, 6), load.open_streams))

    reports = LoadReports(look, send, Changes())
    async with trio.open_nursery() as nursery:
        await start_background_task(nursery, reports.run, name="load-reports")
        for after_s, count in changes:
            if after_s:
                await trio.sleep(after_s)
            streams = count
            reports.changes.notify()
        await trio.sleep(1)
        seen = looks
        await trio.sleep(3600)
        assert looks == seen, "an idle frontend sleeps"
        nursery.cancel_scope.cancel("the test is over")
    assert sent == reported


async def test_what_changes_before_it_is_watched_is_reported(
    autojump_clock: trio.testing.MockClock,
) -> None:
    engines, changes = 0, Changes()
    sent: list[int] = []

    def change() -> None:
        nonlocal engines
        engines += 1
        changes.notify()

    async def send(load: FrontendLoad) -> None:
        await trio.lowlevel.checkpoint()
        sent.append(load.engines_ready)

    reports = LoadReports(lambda: FrontendLoad(0, 0, 0, engines_ready=engines), send, Changes())
    async with trio.open_nursery() as nursery:
        await start_background_task(nursery, reports.run, name="load-reports")
        await trio.testing.wait_all_tasks_blocked()
        change()
        nursery.start_soon(reports.watch, changes, "the engines")
        for _ in range(2):
            await trio.sleep(1)
            change()
        await trio.sleep(1)
        nursery.cancel_scope.cancel("the test is over")
    assert sent == [0, 1, 2, 3]
