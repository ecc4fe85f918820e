"""The n-th system call fails, for every n until a run passes without: files, memory, descriptors.

What the house itself asks of the system for journals, their folder, the run folder and held
connections: each call is counted on its way through Python's modules, and one is answered with an
error. Callers see no error but those that they expect, no descriptor is left, and the next run
finds what was promised, or that it was not kept.
"""

import ctypes
import errno
import fcntl
import io
import itertools
import mmap
import os
import pathlib
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import pytest
import trio

from triolet.engine.errors import BootRefused
from triolet.engine.messages import FinishReason, StepOutputs
from triolet.runtime.continuity.held_connections import HeldConnections
from triolet.runtime.continuity.journal_folder import open_journal_folder
from triolet.runtime.control.run_folder import live_runs, make_run_folder
from triolet.runtime.journal.disk_file import open_disk_journal
from triolet.runtime.journal.journal import Journal, open_journal
from triolet.runtime.journal.memory import create_journal
from triolet.runtime.journal.records import JournalUnreadable
from triolet.runtime.journal.writer import JournalLimits
from triolet.transports import sparse_memory

from ..leaks import check_no_leaks
from .journal.making import ENGINE, admit, frame, output, placement

CALLS: tuple[tuple[Any, str], ...] = (
    *((os, name) for name in ("open", "dup", "write", "pread", "pwrite", "ftruncate", "fstat")),
    *((os, name) for name in ("stat", "lstat", "fsync", "fdatasync", "memfd_create", "mkdir")),
    *((os, name) for name in ("rename", "replace", "unlink", "rmdir", "listdir", "scandir")),
    *((fcntl, name) for name in ("flock", "fcntl")),
    (mmap, "mmap"),
    (io, "open"),
    (sparse_memory._libc, "fallocate"),
)
ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENOMEM)
CALLS_MAX = 200
LIMITS = JournalLimits(clean_above_bytes=0, turn_bytes=1)


@attrs.define(eq=False)
class FailingCalls:
    """Counts the calls within `entered`, and fails the one of this number."""

    fails_at: int
    error: int
    calls: int = 0
    failed: str = ""

    @contextmanager
    def entered(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for module, name in CALLS:
                patch.setattr(module, name, self._counted(name, getattr(module, name)))
            yield

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls != self.fails_at:
                return call(*args, **options)
            self.failed = name
            if name == "fallocate":  # of the C library
                ctypes.set_errno(self.error)
                return -1
            raise OSError(self.error, os.strerror(self.error))

        return counted


def each_call(at_least: int) -> Iterator[FailingCalls]:
    """Until none has failed: that was a run as every other. The errors take turns.

    No code of ours asks which one a call has failed with.
    """
    for number, error in zip(itertools.count(1), itertools.cycle(ERRORS), strict=False):
        assert number < CALLS_MAX
        calls = FailingCalls(number, error)
        yield calls
        if not calls.failed:
            assert number > at_least, "a run asks the system for something"
            return


def use(journal: Journal) -> None:
    """A stream of one token and its end, and another stream, so that the first one is moved."""
    (sink,) = admit(journal, "s")
    journal.place(placement("s#0", 1))
    sink.token_ids.append(5)
    last = [output("s#0", 1, 0, [5], FinishReason.STOP)]
    journal.append_message(ENGINE, frame(StepOutputs(1, last)), last)
    journal.keep_value("v", b"x" * 2**20)
    journal.keep_value("v", b"")


def tokens_in(journal: Journal) -> list[list[int]]:
    return [choice.token_ids for stream in journal.streams() for choice in stream.choices]


def check_found(journal: Journal, *, is_promised: bool) -> None:
    found = tokens_in(journal)
    assert found == [[5]] if is_promised else found in ([[5]], [[]], [])


def test_a_journal_in_memory() -> None:
    for calls in each_call(8):
        with check_no_leaks(), suppress(OSError):
            with calls.entered():
                fd = create_journal(0)
            try:
                failure = "it was not opened"
                with suppress(OSError), calls.entered(), open_journal(fd, 1, LIMITS) as journal:
                    use(journal)
                    failure = journal.failure
                with open_journal(fd, 2, LIMITS) as journal:
                    check_found(journal, is_promised=not failure)
            finally:
                os.close(fd)


async def live(path: pathlib.Path, use: Callable[[Journal], None]) -> str:
    """One server with one frontend; why its journal was given up."""
    async with open_journal_folder(path, model="m", frontends=1) as folder:
        fd = folder.open_journal(0)
        try:
            async with open_disk_journal(fd, next(folder.numbers()), LIMITS, 0.0) as journal:
                use(journal)
                await trio.testing.wait_all_tasks_blocked(0.001)  # until it is synced
            return journal.failure
        finally:
            os.close(fd)


async def test_journals_on_disk_and_their_folder(tmp_path: pathlib.Path) -> None:
    for calls in each_call(20):
        path = tmp_path / str(calls.fails_at)
        failure = "it was not opened"
        with suppress(BootRefused, JournalUnreadable, OSError), calls.entered():
            failure = await live(path, use)

        def look(journal: Journal) -> None:
            check_found(journal, is_promised=not failure)  # noqa: B023  # called at once

        refused = ""
        try:
            await live(path, look)
        except JournalUnreadable as unreadable:
            refused = unreadable.reason
        # Numbers were given that the disk took no note of: see `JournalFolder.numbers`.
        assert not refused or (calls.failed and "is not before term" in refused)


def test_the_run_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    facts = {"url": "u", "model": "m", "version": "1"}
    for calls in each_call(8):
        with check_no_leaks():
            with suppress(OSError), calls.entered(), make_run_folder("r", **facts):
                pass
            with make_run_folder(f"s{calls.fails_at}", **facts):
                assert any(each.facts.run_id.startswith("s") for each in live_runs())
            for left in (tmp_path / "triolet").iterdir():  # as it is when its owner is gone
                for name in left.iterdir():
                    name.unlink()
                left.rmdir()


@contextmanager
def accepted() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        server, _ = listener.accept()
        with server:
            yield client, server


def hold_and_end(client: socket.socket, server: socket.socket) -> None:
    """One connection offered twice, as to two frontends, one of which has ended it."""
    held = HeldConnections()
    with held.open(1):
        with suppress(BootRefused):
            held.handle_starting(0, 1)
        held.handle_ready(0, 1)
        offered = [held.offer(0, server.fileno(), number) for number in range(2)]
        taken = [each for each in offered if each is not None]
        for each in taken:
            held.handle_taken(0, each, 1)
        client.sendall(b"question")
        assert server.recv(100) == b"question", "held or not, it is served"
        held.handle_ended(0, [each.slot for each in taken[:1]])


def test_held_connections() -> None:
    for calls in each_call(4):
        with check_no_leaks(), accepted() as (client, server):
            with calls.entered():
                hold_and_end(client, server)
            server.close()
            assert client.recv(1) == b"", "and ends with its last owner"
