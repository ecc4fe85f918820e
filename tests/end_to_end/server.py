"""What the tests of whole servers share: start one as a user would, look at it, find what it left.

A server is a `ServerProcess`; any number of them, of any number of test runs, live side by side.
"""

import json
import pathlib
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import partial

import httpx
import trio

from triolet.fuzz import observers
from triolet.fuzz.observers import GONE, abstract_sockets, marked, state_of
from triolet.fuzz.server_process import MARK as MARK
from triolet.fuzz.server_process import ServerProcess
from triolet.fuzz.server_process import places as places
from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.runtime.control.client import ControlCallFailed

# A server or a stream that is not there by then never comes; two busy cores need some seconds.
DEADLINE_S = 60.0
SERVE_WITH = pathlib.Path(__file__).parent / "programs" / "serve_with.py"
CLIENTS = pathlib.Path(__file__).parent / "clients"

# Looks again and again; `NotInTime` says what was missed.
wait_until = partial(observers.wait_until, seconds=DEADLINE_S)


class Server(ServerProcess):
    """One server process with all below it. Made by `open_server` and `module_server`."""

    async def wait_ready(self) -> None:
        """Return when it says that it serves; then it must answer at once."""
        await wait_until(self.has_begun, "the server serves")
        assert await self.is_ready(), "it said that it serves"

    def client(self) -> httpx.AsyncClient:
        """An HTTP client for it, whose time-outs are the test's own."""
        return httpx.AsyncClient(base_url=self.url, timeout=None)

    async def is_ready(self) -> bool:
        """What `/ready` says; a connection that ends is a no."""
        try:
            async with self.client() as client:
                return (await client.get("/ready")).status_code == 200
        except httpx.TransportError:
            return False

    async def health(self) -> list[dict[str, object]]:
        """The engines, as `/health` lists them."""
        async with self.client() as client:
            engines = (await client.get("/health")).json()["engines"]
        assert isinstance(engines, list)
        return engines

    async def metrics(self) -> dict[str, float]:
        """Every number of `/metrics`, by name and labels."""
        async with self.client() as client:
            return await scrape(client)

    async def tree(self) -> ProcessTree:
        """The live tree, with an answer of every process.

        Asked for again while one is too late for it: then that is all that the tree says of it.
        """
        found: list[ProcessTree] = []

        async def has_answered() -> bool:
            try:
                found[:] = [await self.ask_tree()]
            except ControlCallFailed:
                return False
            return is_whole(found[0])

        await wait_until(has_answered, "every process of the tree answers")
        return found[0]

    async def wait_linked(self, frontends: int, engines: int) -> None:
        """It serves as soon as one frontend has one engine; return when all have all."""

        async def all_linked() -> bool:
            # One that still boots has no such fact; a spare never has.
            tree = places(await self.tree())
            linked = [each for each in tree if each[0].startswith("frontend")]
            found = [process.facts.get("engines") for _, process in linked]
            return found == [engines] * frontends

        await wait_until(all_linked, "every frontend has every engine")

    async def wait_replaced(self, place: str, pid: int) -> None:
        """Return when another process than this one is in its place."""

        async def is_replaced() -> bool:
            return (await self.pids()).get(place, pid) != pid

        await wait_until(is_replaced, f"{place} is back")

    async def pids(self) -> dict[str, int]:
        """{place in the tree: pid}, as "root", "frontend 0", "engine 1" and "engine 1/worker 0"."""
        return {name: process.pid for name, process in places(await self.tree())}

    def send_signal(self, number: signal.Signals) -> None:
        """To the root process alone, as a service manager does."""
        self.popen.send_signal(number)

    async def wait_exited(self) -> int:
        """The exit code."""
        await wait_until(lambda: self.popen.poll() is not None, "the server ends")
        assert self.popen.returncode is not None
        return self.popen.returncode

    def remains(self) -> list[str]:
        """What is left of this run on the machine, the folder with our own log aside."""
        folders = self.folder / "triolet"
        left = [f"run folder {path}" for path in folders.glob("*")] if folders.exists() else []
        return [*remains(self.mark, self.run_id), *left]

    async def stop(self) -> None:
        """End it in order if it still runs; fail if anything is left, and leave nothing anyway."""
        try:
            if self.popen.poll() is None:
                self.send_signal(signal.SIGINT)
                assert await self.wait_exited() in (0, 3), self.log()
                assert self.remains() == []
        finally:
            # Carries the log to the report of a test that failed.
            sys.stdout.write(self.log())
            self.kill()


async def scrape(client: httpx.AsyncClient) -> dict[str, float]:
    """See `Server.metrics`; of the frontend that has this client's connection."""
    text = (await client.get("/metrics")).text
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name.removeprefix("triolet_"): float(value) for name, _, value in lines}


def is_whole(tree: ProcessTree) -> bool:
    """Whether every process in it had its say in time, or is not yet up.

    An engine leaves out its workers that were too late.
    """
    return all(
        process.facts.get("state") != "does not answer"
        and (
            not name.startswith("engine")
            or "/" in name
            or bool(process.processes)
            or "phase" in process.facts  # it boots
        )
        for name, process in places(tree)
    )


def serve_command(*options: str, **engine: object) -> list[str]:
    """The command of a user; with engine fields, the same server by way of `serve_with`.

    The system chooses the port unless an option does. One thread computes: two on two busy cores
    wait for each other.
    """
    if engine:
        return [sys.executable, str(SERVE_WITH), json.dumps(engine), *options]
    port = [] if "--port" in options else ["--port", "0"]
    return [sys.executable, "-m", "triolet", "serve", *port, "--threads", "1", *options]


def open_server(
    folder: pathlib.Path, *options: str, limits: str = "", **engine: object
) -> AbstractAsyncContextManager[Server]:
    """A server that answers; afterwards nothing of it is left, or the test fails.

    `limits` are commands of a shell that becomes the server.
    """
    command = serve_command(*options, **engine)
    if limits:
        command = ["sh", "-c", f'{limits} && exec "$@"', "sh", *command]
    return open_command(folder, command)


@asynccontextmanager
async def open_command(folder: pathlib.Path, command: Sequence[str]) -> AsyncIterator[Server]:
    """The same of a command of one's own."""
    server = Server([*command], folder)
    server.spawn()
    try:
        await server.wait_ready()
        yield server
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + DEADLINE_S):
            await server.stop()


def open_chaos_server(folder: pathlib.Path, *options: str) -> AbstractAsyncContextManager[Server]:
    """A server whose processes die of the poisons in what clients send."""
    return open_command(folder, chaos_command(*options))


def chaos_command(*options: str) -> list[str]:
    """The command of such a server."""
    module = [sys.executable, "-m", "triolet.fuzz.chaos.chaos_server", ""]
    return [*module, "serve", "--port", "0", "--threads", "1", *options]


def module_server(
    folder: pathlib.Path, *options: str, **engine: object
) -> AbstractContextManager[Server]:
    """A server for fixtures of a module, which no trio run surrounds."""
    return module_command(folder, serve_command(*options, **engine))


@contextmanager
def module_command(folder: pathlib.Path, command: Sequence[str]) -> Iterator[Server]:
    """The same of a command of one's own."""
    server = Server([*command], folder)
    server.spawn()
    try:
        trio.run(server.wait_ready)
        yield server
    finally:
        trio.run(server.stop)


async def recovered(server: Server, frontends: int, engines: int) -> Server:
    """The server of a module, when it has recovered from what the test before did to it."""
    with trio.fail_after(DEADLINE_S):
        await server.wait_linked(frontends, engines)
    return server


# ---- what is left


def marked_processes(mark: str) -> dict[int, str]:
    """{pid: command} of the processes that carry this mark in their environment.

    One that is exiting loses its environment a moment before its descriptors: see `living`.
    """
    found = {}
    for pid in marked(f"{MARK}={mark}"):
        with suppress(OSError):  # ended while we looked
            command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            found[pid] = command.replace(b"\0", b" ").decode()
    return found


def living(pids: Iterable[int]) -> list[int]:
    """Those that exist and are more than an exit code that was not read (init may be slow)."""
    return [pid for pid in pids if state_of(pid) not in {"Z", "X", GONE}]


def remains(mark: str, run_id: str) -> list[str]:
    """Processes with this mark and sockets with this run id, described."""
    processes = [f"process {pid} {command}" for pid, command in marked_processes(mark).items()]
    assert run_id, "a run without an id would have no sockets"
    return [*processes, *abstract_sockets(run_id)]
