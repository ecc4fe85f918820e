"""Run under test: `triolet serve` as a user starts it, whole, quiet, or what remains of it."""

import contextlib
import pathlib
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from ...nurseries.processes.spares import APART, SPARE
from ...nurseries.tasks.task_tree import ProcessTree
from ...runtime.control.client import ControlCallFailed
from ..observers import (
    ESTABLISHED,
    NotInTime,
    children_of,
    name_of,
    open_files,
    resident_bytes,
    shared_memory_of,
    state_of,
    tcp_sockets,
    wait_until,
)
from ..server_process import ServerProcess, places
from .checkers import Look, QuietLook
from .clients import ask
from .options import PROGRAM

SLOT_MEMORY = "/memfd:triolet-connections-"
# How the title of a process ends that has no rank yet.
WAITING = "waiting"
# The folder of journals that are on disk.
JOURNAL = "journal"
# Torch imports for some seconds on two busy cores.
READY_S = 90.0
# The ladder's sum, and the exit of an interpreter, with much to spare.
STOPPED_S = 15.0


class ServedRun(ServerProcess):
    """One `triolet serve`, alive. Made by `open_served_run`."""

    @property
    def port(self) -> int:
        """Where it serves; 0 while it does not."""
        return int(self.url.rpartition(":")[2] or 0)

    async def processes(self) -> dict[str, ProcessTree]:
        """{place: process} of the live tree, as "frontend 0", "engine 1", "engine 1/worker 0".

        Raises `ControlCallFailed`.
        """
        return dict(places(await self.ask_tree()))

    async def is_whole(self, places: Sequence[str], gone: Sequence[int] = ()) -> bool:
        """Whether all these processes are up, none of `gone` is, and every frontend has every
        engine.

        Spares are nobody's need: see `has_spares`.
        """
        try:
            found = serving(await self.processes())
        except ControlCallFailed:
            return False
        return set(found) == set(places) and all(
            is_serving(place, process, places) and process.pid not in gone
            for place, process in found.items()
        )

    async def has_spares(self, count: int) -> bool:
        """Whether so many processes wait, warm, to be the next of their kind, and so do the workers
        that came with them."""
        try:
            found = await self.processes()
        except ControlCallFailed:
            return False
        spares = [process for place, process in found.items() if is_spare(place)]
        workers = [worker for spare in spares for worker in spare.processes]
        return [spare.facts.get("phase") for spare in spares] == ["warm"] * count and all(
            name_of(worker.pid).endswith(WAITING) for worker in workers
        )

    @property
    def key(self) -> str:
        """The first key of the server's clients; empty where there are none."""
        words = self.command
        return words[words.index("--api-key") + 1] if "--api-key" in words else ""

    async def engine_states(self) -> dict[str, tuple[int, str]]:
        """{"engine 0": (epoch, state)} as /health has it. Raises `Lost`."""
        _, health = await ask(self.port, "GET", "/health")
        return {f"engine {e['rank']}": (e["epoch"], e["state"]) for e in health["engines"]}

    async def quiet_look(self) -> QuietLook:
        """All that the checkers compare. Raises `ControlCallFailed`."""
        found = await self.processes()
        pids = frozenset(process.pid for process in found.values())
        return QuietLook(
            places={place: _look(process) for place, process in found.items()},
            pids=self.marked(),
            zombies=tuple(
                child for pid in pids for child in children_of(pid) if state_of(child) == "Z"
            ),
            abstract_sockets=len(self.sockets()),
            shared_memory=shared_memory_of(pids),
            connections=sum(
                1
                for each in tcp_sockets()
                if each.local_port == self.port and each.state == ESTABLISHED
            ),
        )

    def pids(self) -> list[int]:
        """Every process of the run, the root first."""
        return [self.pid, *sorted(self.marked() - {self.pid})]

    def remains(self) -> tuple[list[int], list[str]]:
        """Processes and sockets that are still there."""
        return [pid for pid in self.marked() if state_of(pid) not in "ZX"], self.sockets()

    async def start(self, port: int = 0) -> None:
        """Begin, or begin again when its root has ended, until it serves.

        Raises `ServerEnded` or `NotInTime` if it does not.
        """
        self.spawn("--port", str(port))
        await wait_until(self.has_begun, "the server serves", seconds=READY_S)

    async def stop(self) -> None:
        """End it in order if it still runs, and leave nothing, whatever happens."""
        with trio.CancelScope(shield=True), contextlib.suppress(NotInTime):
            if self.popen.poll() is None:
                self.popen.terminate()
            await wait_until(
                lambda: self.popen.poll() is not None, "the server ends", seconds=STOPPED_S
            )
        self.kill()


@asynccontextmanager
async def open_served_run(
    folder: pathlib.Path, options: Sequence[str], program: Sequence[str] = PROGRAM
) -> AsyncIterator[ServedRun]:
    """Start `triolet serve` with these options in a runtime folder of its own, until it serves.

    `program` is what Python is told to run. Raises `ServerEnded` or `NotInTime` if it does not
    serve. Afterwards nothing of it runs.
    """
    run = ServedRun([sys.executable, *program, "serve", *options], folder)
    try:
        await run.start()
        yield run
    finally:
        await run.stop()


def is_spare(place: str) -> bool:
    """Whether a spare itself is there, not what it has started."""
    return place.startswith(SPARE) and "/" not in place


def serving(processes: Mapping[str, ProcessTree]) -> dict[str, ProcessTree]:
    """Those that are no spares, nor of a spare, nor make them."""
    return {place: each for place, each in processes.items() if not is_apart(place)}


def is_apart(place: str) -> bool:
    """Whether a spare is there, or of a spare, or what makes them."""
    return any(part.startswith(APART) for part in place.split("/"))


def is_up(process: ProcessTree) -> bool:
    """Whether it answers, and has booted."""
    return "done" not in process.facts and "state" not in process.facts


def is_serving(place: str, process: ProcessTree, places: Sequence[str]) -> bool:
    """Whether it answers, has booted, and is linked with all that it should be."""
    if not is_up(process):
        return False
    peers = {"frontend": "engine", "engine": "frontend"}.get(place.partition(" ")[0])
    if peers is None or "/" in place:
        return True
    wanted = sum(1 for each in places if each.startswith(peers) and "/" not in each)
    return process.facts.get(f"{peers}s") == wanted


def epochs_of(processes: Mapping[str, ProcessTree]) -> dict[str, int]:
    """{place: epoch} of those that have one; a worker's is its engine's."""
    return {
        place: int(process.facts["epoch"])
        for place, process in processes.items()
        if "epoch" in process.facts and "/" not in place
    }


def _look(process: ProcessTree) -> Look:
    # A mapping of connection slots keeps a descriptor and stays, so they are as many as were ever
    # in use at once: no leak, and bounded by the slots.
    files = [path for path in open_files(process.pid) if not path.startswith(SLOT_MEMORY)]
    return Look(
        pid=process.pid,
        epoch=int(process.facts.get("epoch", 0)),
        fds=len(files),
        memfds=sum(1 for path in files if path.startswith("/memfd:")),
        rss_bytes=resident_bytes(process.pid),
        facts=dict(process.facts),
    )
