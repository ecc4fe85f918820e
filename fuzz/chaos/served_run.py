"""The run under test: `triolet serve` as a user starts it, its tree asked for, its remains counted.

The processes of a run are those that carry its mark in their environment, its sockets those with
its run id in their name.
"""

import contextlib
import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs
import msgspec
import trio

from ...nurseries.processes.spares import APART, SPARE
from ...nurseries.tasks.task_tree import ProcessTree
from ...runtime.control.calls import ControlCall
from ...runtime.control.client import ControlCallFailed, ask_run
from ...runtime.control.run_folder import RUN_FILE, RunFacts, RunFolder
from ..observers import (
    ESTABLISHED,
    NotInTime,
    abstract_sockets,
    children_of,
    marked,
    name_of,
    open_files,
    resident_bytes,
    shared_memory_of,
    state_of,
    tcp_sockets,
    wait_until,
)
from .checkers import Look, QuietLook
from .clients import Lost, ask
from .options import PROGRAM

MARK = "TRIOLET_CHAOS_MARK"
SLOT_MEMORY = "/memfd:triolet-connections-"
# How the title of a process ends that has no rank yet.
WAITING = "waiting"
# The folder of journals that are on disk.
JOURNAL = "journal"
# Torch imports for some seconds on two busy cores.
READY_S = 90.0
# The ladder's sum, and the exit of an interpreter, with much to spare.
STOPPED_S = 15.0


@attrs.define(eq=False)
class ServedRun:
    """One `triolet serve`, alive. Made by `open_served_run`."""

    popen: subprocess.Popen[bytes]
    folder: pathlib.Path
    mark: str
    # What Python runs, but for the port.
    words: Sequence[str] = ()
    port: int = attrs.field(default=0, init=False)
    run_id: str = attrs.field(default="", init=False)
    _run_folder: RunFolder | None = attrs.field(default=None, init=False)
    # Of the log, what servers before this one wrote.
    _log_began: int = attrs.field(default=0, init=False)

    @property
    def pid(self) -> int:
        """The root's."""
        return self.popen.pid

    def log(self) -> str:
        """All that it and its children wrote."""
        return (self.folder / "log").read_text()

    async def has_begun(self) -> bool:
        """Whether it serves; then port and run id are known. Raises `Lost` if it has ended."""
        if self.popen.poll() is not None:
            raise Lost(f"the server has ended:\n{self.log()}")
        if "serving on " not in self.log()[self._log_began :]:
            return False
        runs = (self.folder / "triolet").iterdir()
        path = max(runs, key=lambda each: each.stat().st_ctime_ns)
        facts = RunFacts(**json.loads((path / RUN_FILE).read_text()))
        self._run_folder = RunFolder(path, facts)
        self.run_id, self.port = facts.run_id, int(facts.url.rpartition(":")[2])
        return True

    async def processes(self) -> dict[str, ProcessTree]:
        """{place: process} of the live tree, as "frontend 0", "engine 1", "engine 1/worker 0".

        Raises `ControlCallFailed`.
        """
        assert self._run_folder is not None
        text = await ask_run(self._run_folder, ControlCall.TREE)
        return dict(places(msgspec.json.decode(text, type=ProcessTree)))

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
        words = list(self.words)
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
            pids=marked(f"{MARK}={self.mark}"),
            zombies=tuple(
                child for pid in pids for child in children_of(pid) if state_of(child) == "Z"
            ),
            abstract_sockets=len(abstract_sockets(self.run_id)),
            shared_memory=shared_memory_of(pids),
            connections=sum(
                1
                for each in tcp_sockets()
                if each.local_port == self.port and each.state == ESTABLISHED
            ),
        )

    def pids(self) -> list[int]:
        """Every process of the run, the root first."""
        return [self.pid, *sorted(marked(f"{MARK}={self.mark}") - {self.pid})]

    def remains(self) -> tuple[list[int], list[str]]:
        """Processes and sockets that are still there."""
        living = [pid for pid in marked(f"{MARK}={self.mark}") if state_of(pid) not in "ZX"]
        return living, abstract_sockets(self.run_id)

    async def start_again(self) -> None:
        """The same server at the same address, when its root has ended; until it serves.

        Raises `Lost` or `NotInTime` if it does not.
        """
        self._log_began = len(self.log())
        self.popen = _spawn(self.folder, self.mark, self.words, self.port)
        await wait_until(self.has_begun, "the server serves", seconds=READY_S)

    async def stop(self) -> None:
        """End it in order if it still runs, and leave nothing, whatever happens."""
        with trio.CancelScope(shield=True), contextlib.suppress(NotInTime):
            if self.popen.poll() is None:
                self.popen.terminate()
            await wait_until(
                lambda: self.popen.poll() is not None, "the server ends", seconds=STOPPED_S
            )
        for pid in marked(f"{MARK}={self.mark}"):
            os.kill(pid, signal.SIGKILL)
        self.popen.wait()


@asynccontextmanager
async def open_served_run(
    folder: pathlib.Path, options: Sequence[str], program: Sequence[str] = PROGRAM
) -> AsyncIterator[ServedRun]:
    """Start `triolet serve` with these options in a runtime folder of its own, until it serves.

    `program` is what Python is told to run. Raises `Lost` or `NotInTime` if it does not serve.
    Afterwards nothing of it runs.
    """
    mark, words = secrets.token_hex(8), [*program, "serve", *options]
    run = ServedRun(_spawn(folder, mark, words, 0), folder, mark, words)
    try:
        await wait_until(run.has_begun, "the server serves", seconds=READY_S)
        yield run
    finally:
        await run.stop()


def _spawn(
    folder: pathlib.Path, mark: str, words: Sequence[str], port: int
) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *words, "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, MARK: mark, "XDG_RUNTIME_DIR": str(folder)},
            start_new_session=True,
        )


def is_spare(place: str) -> bool:
    """Whether a spare itself is there, not what it has started."""
    return place.startswith(SPARE) and "/" not in place


def serving(processes: Mapping[str, ProcessTree]) -> dict[str, ProcessTree]:
    """Those that are no spares, nor of a spare, nor make them."""
    return {place: each for place, each in processes.items() if not is_apart(place)}


def is_apart(place: str) -> bool:
    """Whether a spare is there, or of a spare, or what makes them."""
    return any(part.startswith(APART) for part in place.split("/"))


def is_serving(place: str, process: ProcessTree, places: Sequence[str]) -> bool:
    """Whether it answers, has booted, and is linked with all that it should be."""
    facts = process.facts
    if "done" in facts or "state" in facts:
        return False  # it boots; it does not answer
    peers = {"frontend": "engine", "engine": "frontend"}.get(place.partition(" ")[0])
    if peers is None or "/" in place:
        return True
    wanted = sum(1 for each in places if each.startswith(peers) and "/" not in each)
    return facts.get(f"{peers}s") == wanted


def epochs_of(processes: Mapping[str, ProcessTree]) -> dict[str, int]:
    """{place: epoch} of those that have one; a worker's is its engine's."""
    return {
        place: int(process.facts["epoch"])
        for place, process in processes.items()
        if "epoch" in process.facts and "/" not in place
    }


def places(tree: ProcessTree, above: str = "") -> Iterator[tuple[str, ProcessTree]]:
    """Every process of a tree with its place: a worker's is below its engine's name."""
    name = f"{above}/{tree.name}" if above else tree.name
    yield name, tree
    for process in tree.processes:
        yield from places(process, "" if tree.name == "root" else name)


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
