"""Homes of a server's frontends: the journal of each, and the term under which it is owned.

A *home* is what ids of responses, claims of idempotency keys, engines and a journal know a frontend
by: its rank. A journal outlives every process of its rank; it ends when the home is lost, or the
server ends.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping

import attrs

from ...engine.messages import FrontendAddress, FrontendMembership
from ...transports.control.passed_fds import close_fds
from ..journal.disk import DISK_REBUILDING_AT
from ..journal.memory import create_journal, forget_rebuilding
from ..journal.records import REBUILDING_AT
from ..messages import FrontendReady, FrontendStates
from .child_process import ChildProcess
from .homes.journal_folder import JournalFolder
from .membership import FrontendDirectory


@attrs.define(eq=False)
class FrontendHomes:
    """Of all frontends of one server, by rank."""

    directory: FrontendDirectory
    on_membership: Callable[[FrontendMembership], None]
    # Where journals are on disk; None: in memory.
    folder: JournalFolder | None = attrs.field(default=None, init=False)
    # {rank: its journal's descriptor}
    _journals: dict[int, int] = attrs.field(factory=dict, init=False)
    # {rank: term under which its home is owned now}
    _terms: dict[int, int] = attrs.field(factory=dict, init=False)
    # {rank: how many processes it has had}
    _starts: Counter[int] = attrs.field(factory=Counter, init=False)
    # {rank: when its last process was gone, by CLOCK_MONOTONIC}
    _died_ns: dict[int, int] = attrs.field(factory=dict, init=False)

    # ---- journals

    def hold(self, rank: int) -> None:
        """Have a journal for this rank, made if there is none. Raises `OSError`."""
        if rank not in self._journals:
            create = create_journal if self.folder is None else self.folder.open_journal
            self._journals[rank] = create(rank)

    def journal(self, rank: int) -> int | None:
        """The descriptor of the journal of a rank, if it has one; it stays ours."""
        return self._journals.get(rank)

    def close(self) -> None:
        """The server ends; files stay."""
        close_fds(self._journals.values())
        self._journals.clear()

    def lose(self, rank: int) -> None:
        """What the processes of this rank have left is lost; a later one begins with nothing."""
        if rank in self._journals:
            close_fds([self._journals.pop(rank)])
            if self.folder is not None:
                self.folder.remove_journal(rank)
        self.on_membership(self.directory.handle_failed(rank))

    # ---- processes that come and go

    def handle_starting(self, rank: int, epoch: int) -> tuple[int, int]:
        """A process of this rank is about to start: under the term that is returned.

        Returns also when the last one was gone, by CLOCK_MONOTONIC; 0 if none was.
        """
        self._starts[rank] += 1
        self._terms[rank] = self.directory.handle_starting(rank, epoch)
        return self._terms[rank], self._died_ns.get(rank, 0)

    def handle_ready(self, rank: int, where: FrontendReady) -> None:
        """The process of this rank has adopted what the one before it has left."""
        endpoints = where.input_endpoint, where.output_endpoint
        address = FrontendAddress(rank, self._terms[rank], *endpoints)
        self.on_membership(self.directory.handle_ready(address))

    def handle_gone(self, rank: int, *, is_own_fault: bool) -> None:
        """The process of this rank is gone: what it has had awaits the next one."""
        if not is_own_fault:
            self._forget_rebuilding(rank)
        self._died_ns[rank] = time.monotonic_ns()
        self.on_membership(self.directory.handle_gone(rank))

    def _forget_rebuilding(self, rank: int) -> None:
        """Its process died of no stream, whatever it was at."""
        position = REBUILDING_AT if self.folder is None else DISK_REBUILDING_AT
        if rank in self._journals and rank in self._terms:
            with contextlib.suppress(OSError):  # of a disk; then it counts
                forget_rebuilding(self._journals[rank], position, self._terms[rank])

    # ---- what others need to know

    def states(
        self, ready: Mapping[int, ChildProcess], failed: Mapping[int, str]
    ) -> FrontendStates:
        """All frontends, as each of them is told."""
        epochs = {rank: child.epoch for rank, child in ready.items()}
        restarts = {rank: starts - 1 for rank, starts in sorted(self._starts.items())}
        return FrontendStates(epochs, dict(failed), restarts)
