"""Journals of a server's frontends: an estate that is in memory, or on disk in a folder of its own.

A journal outlives every process of its rank; it ends when it is lost, or the server ends. On disk
it stays for the next run.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import attrs

from ...transports.control.passed_fds import close_fds
from ..journal.disk import DISK_REBUILDING_AT
from ..journal.memory import create_journal, forget_rebuilding
from ..journal.records import REBUILDING_AT
from ..launch.child import Gone, PlaceEvent
from .estate import not_made
from .journal_folder import JournalFolder


@attrs.define(eq=False)
class FrontendJournals:
    """Journals, one for each rank, made for its first life: see `Estate`."""

    # The folder of journals on disk; None: in memory.
    folder: JournalFolder | None = attrs.field(default=None, init=False)
    # {rank: its journal's descriptor}
    _fds: dict[int, int] = attrs.field(factory=dict, init=False)
    # {rank: epoch of its last process}
    _epochs: dict[int, int] = attrs.field(factory=dict, init=False)

    @contextmanager
    def open(self, count: int) -> Iterator[None]:
        """Files stay when the server ends; memory goes."""
        try:
            yield
        finally:
            close_fds(self._fds.values())
            self._fds.clear()

    def handle_starting(self, rank: int, epoch: int) -> Mapping[str, int]:
        """The journal, and on disk the lock of its folder. Raises `BootRefused`."""
        if rank not in self._fds:
            create = create_journal if self.folder is None else self.folder.open_journal
            try:
                self._fds[rank] = create(rank)
            except OSError as error:
                raise not_made("the journal", f"frontend {rank}", error) from error
        self._epochs[rank] = epoch
        fds = {"journal": self._fds[rank]}
        return fds if self.folder is None else {**fds, "lock": self.folder.lock_fd}

    def handle(self, rank: int, event: PlaceEvent) -> None:
        """A process that is gone, and not by its own fault, has died of no stream.

        Whichever it was rebuilding is rebuilt again.
        """
        match event:
            case Gone(end) if rank in self._fds and not end.is_own_fault:
                position = REBUILDING_AT if self.folder is None else DISK_REBUILDING_AT
                with suppress(OSError):  # of a disk; then it counts
                    forget_rebuilding(self._fds[rank], position, self._epochs[rank])

    def lose(self, rank: int) -> None:
        """Lose what processes of this rank have left; a later one begins with nothing."""
        if rank in self._fds:
            close_fds([self._fds.pop(rank)])
            if self.folder is not None:
                self.folder.remove_journal(rank)
