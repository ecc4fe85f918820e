"""The server of others under test: started by its command line, its processes found and ended.

Its processes are those of its session and below it, whatever they do with their environment. When
the command's own process ends, what is left of it is ended and the command starts again, as systemd
would do; one that lives and does not serve again in time is ended as well.
"""

import contextlib
import os
import pathlib
import shlex
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from ....nurseries.processes.orphans import child_pids
from ...observers import NotInTime, all_pids, name_of, session_of, start_ticks, state_of, wait_until
from ..clients import Lost

# Importing torch and compiling take their time on two busy cores.
READY_S = 300.0
# One whose command lives has so long to serve again by itself.
HEAL_S = 60.0
LOOK_S = 0.1
# What notices the command's death has ended by then.
ORPHANS_S = 1.0
# For the kernel to end what was killed.
GONE_S = 15.0


@attrs.define(eq=False)
class TargetRun:
    """One command line, started again and again. Made by `open_target`."""

    words: list[str]
    log: pathlib.Path
    _popen: subprocess.Popen[bytes] | None = attrs.field(default=None, init=False)
    starts: int = attrs.field(default=0, init=False)
    # Processes that outlived their command.
    left_behind: int = attrs.field(default=0, init=False)

    @property
    def is_running(self) -> bool:
        """Whether the command's own process is."""
        return self._popen is not None and self._popen.poll() is None

    def start(self) -> None:
        """Begin it, in a session of its own. Raises `Lost` where there is no such command."""
        with self.log.open("ab") as log:
            try:
                self._popen = subprocess.Popen(
                    self.words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                raise Lost(f"{self.words[0]} does not start: {error}") from error
        self.starts += 1

    def processes(self) -> list[tuple[int, str]]:
        """(pid, name) of each that lives, in the order of their start: the command is the first."""
        assert self._popen is not None
        session = self._popen.pid
        found = {pid for pid in all_pids() if session_of(pid) == session}
        pending = [session]
        while pending:
            children = child_pids(pending.pop())
            pending += children
            found |= set(children)
        living = [pid for pid in found if state_of(pid) in "RSDTI"]
        ordered = sorted(living, key=lambda pid: (start_ticks(pid), pid))
        return [(pid, "command" if pid == session else name_of(pid)) for pid in ordered]

    async def end(self) -> None:
        """Kill all of it. Raises `NotInTime`."""
        assert self._popen is not None
        for pid, _ in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait()
        await wait_until(lambda: not self.processes(), "all of it is gone", seconds=GONE_S)

    def ended(self) -> Lost:
        """What is to be said of a command that ended by itself."""
        return Lost(f"the command has ended:\n{self.log.read_text()[-2000:]}")

    async def restart(self) -> None:
        """Begin it again; what its last life left behind, for longer than a second, is counted."""
        if not self.is_running:
            with contextlib.suppress(NotInTime):
                await wait_until(lambda: not self.processes(), "all ends", seconds=ORPHANS_S)
            self.left_behind += len(self.processes())
        await self.end()
        self.start()


@asynccontextmanager
async def open_target(command: str, log: pathlib.Path) -> AsyncIterator[TargetRun]:
    """The command, started. Afterwards nothing of it runs. Raises `Lost`."""
    run = TargetRun(shlex.split(command), log)
    run.start()
    try:
        yield run
    finally:
        with trio.CancelScope(shield=True), contextlib.suppress(NotInTime):
            await run.end()
