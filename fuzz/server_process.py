"""Server process: a command of `triolet serve` as a user starts it, its live tree, and its remains.

Each has a runtime folder and an environment mark of its own, so that any number of servers live
side by side: the processes of a run are those that carry its mark, its sockets those with its run
id in their name.
"""

import json
import os
import pathlib
import secrets
import signal
import subprocess
from collections.abc import Iterator

import attrs
import msgspec

from ..nurseries.tasks.task_tree import ProcessTree
from ..runtime.control.calls import ControlCall
from ..runtime.control.client import ask_run
from ..runtime.control.run_folder import RUN_FILE, RunFacts, RunFolder
from .observers import abstract_sockets, marked

MARK = "TRIOLET_TEST_MARK"


@attrs.frozen
class ServerEnded(Exception):
    """The server is not there, though nobody has ended it; `log` is all that it said."""

    log: str

    def __str__(self) -> str:
        return f"the server has ended:\n{self.log}"


@attrs.define(eq=False)
class ServerProcess:
    """One server with all below it."""

    command: list[str]
    folder: pathlib.Path
    mark: str = attrs.field(factory=lambda: secrets.token_hex(8), init=False)
    # Known when it serves.
    url: str = attrs.field(default="", init=False)
    run_id: str = attrs.field(default="", init=False)
    popen: subprocess.Popen[bytes] = attrs.field(init=False)
    # Size of the log that servers before this one wrote in the same folder.
    _log_began: int = attrs.field(default=0, init=False)

    @property
    def pid(self) -> int:
        """The root's."""
        return self.popen.pid

    def spawn(self, *more: str) -> None:
        """Start the command, with more words; return at once."""
        with (self.folder / "log").open("ab") as log:
            self._log_began = log.tell()
            self.popen = subprocess.Popen(
                [*self.command, *more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, MARK: self.mark, "XDG_RUNTIME_DIR": str(self.folder)},
                start_new_session=True,
            )

    def log(self) -> str:
        """All that it and its children wrote."""
        return (self.folder / "log").read_text()

    def has_begun(self) -> bool:
        """Whether it serves; then URL and run id are known. Raises `ServerEnded`."""
        if self.popen.poll() is not None:
            raise ServerEnded(self.log())
        if "serving on " not in self.log()[self._log_began :]:
            return False
        facts = self.run_folder().facts
        self.url, self.run_id = facts.url, facts.run_id
        return True

    def run_folder(self) -> RunFolder:
        """The newest run folder below this server's own runtime folder."""
        runs = (self.folder / "triolet").iterdir()
        path = max(runs, key=lambda each: each.stat().st_ctime_ns)
        return RunFolder(path, RunFacts(**json.loads((path / RUN_FILE).read_text())))

    async def ask_tree(self) -> ProcessTree:
        """The live tree, over the run folder's control socket. Raises `ControlCallFailed`."""
        text = await ask_run(self.run_folder(), ControlCall.TREE)
        return msgspec.json.decode(text, type=ProcessTree)

    def marked(self) -> frozenset[int]:
        """Every process of it that has its environment still."""
        return marked(f"{MARK}={self.mark}")

    def sockets(self) -> list[str]:
        """Its abstract sockets, by name."""
        assert self.run_id, "a run without an id would have no sockets"
        return abstract_sockets(self.run_id)

    def kill(self) -> None:
        """End all of it, whatever has happened."""
        for pid in self.marked():
            os.kill(pid, signal.SIGKILL)
        self.popen.wait()


def places(tree: ProcessTree, above: str = "") -> Iterator[tuple[str, ProcessTree]]:
    """Every process of a tree with its place: a worker's is below its engine's name."""
    name = f"{above}/{tree.name}" if above else tree.name
    yield name, tree
    for process in tree.processes:
        yield from places(process, "" if tree.name == "root" else name)
