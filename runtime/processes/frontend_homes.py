"""Homes of a server's frontends: the journal of each, who goes on with it, and under which term.

The shell over `HomeOwners` and `FrontendDirectory`. A journal is made with its home and outlives
every process that has it; it ends when the home is lost, or the server ends.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping

import attrs
import trio

from ...engine.messages import FrontendAddress, FrontendMembership
from ...transports.control.passed_fds import close_fds
from ..journal.disk import DISK_REBUILDING_AT
from ..journal.memory import create_journal, forget_rebuilding
from ..journal.records import REBUILDING_AT
from ..messages import (
    ForeignCall,
    ForeignReply,
    FrontendReady,
    FrontendStates,
    HomeHosted,
    HostHome,
)
from .child_process import ChildProcess
from .homes.home_owners import HomeOwners
from .homes.journal_folder import JournalFolder
from .membership import FrontendDirectory, deliver


@attrs.define(eq=False)
class FrontendHomes:
    """Of all frontends of one server."""

    owners: HomeOwners
    directory: FrontendDirectory
    on_membership: Callable[[FrontendMembership], None]
    # Where journals are on disk; None: in memory.
    folder: JournalFolder | None = attrs.field(default=None, init=False)
    # {home: its journal's descriptor}
    _journals: dict[int, int] = attrs.field(factory=dict, init=False)
    # {home: term under which it is owned now}
    _terms: dict[int, int] = attrs.field(factory=dict, init=False)
    # {rank: how many processes it has had}
    _starts: Counter[int] = attrs.field(factory=Counter, init=False)
    # {home: when the last process that had it was gone, by CLOCK_MONOTONIC}
    _died_ns: dict[int, int] = attrs.field(factory=dict, init=False)

    # ---- journals

    def hold(self, home: int) -> None:
        """Have a journal for this home, made if there is none. Raises `OSError`."""
        if home not in self._journals:
            create = create_journal if self.folder is None else self.folder.open_journal
            self._journals[home] = create(home)

    def hold_left(self) -> None:
        """Have the journals that a server before this one left beside those of its ranks.

        They go on at ranks of this one. Raises `OSError`.
        """
        left = [] if self.folder is None else self.folder.left_homes()
        for home in left:
            self.hold(home)
        self.owners.handle_left(left)

    def journal(self, rank: int) -> int | None:
        """The descriptor of the journal of a rank's own home, if it has one; it stays ours."""
        home = self.owners.own(rank)
        return None if home is None else self._journals.get(home)

    def close(self) -> None:
        """The server ends; files stay."""
        close_fds(self._journals.values())
        self._journals.clear()

    def _lose(self, homes: Iterable[int]) -> None:
        """No frontend will have these any more, or not with what is in them."""
        for home in homes:
            if home in self._journals:
                close_fds([self._journals.pop(home)])
                if self.folder is not None:
                    self.folder.remove_journal(home)
            self.on_membership(self.directory.handle_failed(home))

    # ---- processes that come and go

    def begin_own(self, rank: int, home: int, number: int) -> tuple[int, int]:
        """As `begin`, of a process that is about to start. Returns also when the last one that had
        the home was gone, by CLOCK_MONOTONIC; 0 if none was.
        """
        self._starts[rank] += 1
        return self.begin(home, number), self._died_ns.get(home, 0)

    def begin(self, home: int, number: int) -> int:
        """A process is to have this home: under the term that is returned, at least this number.

        If it is not its own: by a number that no process has.
        """
        self._terms[home] = self.directory.handle_starting(home, number)
        return self._terms[home]

    def handle_ready(self, rank: int, where: FrontendReady) -> None:
        """The process of this rank has adopted its own home."""
        home = self.owners.own(rank)
        assert home is not None, "it has begun with one"
        self._list(home, where.input_endpoint, where.output_endpoint)

    def handle_hosted(self, rank: int, message: HomeHosted) -> None:
        """The process of this rank has adopted another home, unless it is another's by now."""
        home = message.home
        is_latest = self._terms.get(home) == message.term
        if is_latest and self.owners.handle_hosted(rank, home):
            self._list(home, message.input_endpoint, message.output_endpoint)

    def _list(self, home: int, input_endpoint: str, output_endpoint: str) -> None:
        address = FrontendAddress(home, self._terms[home], input_endpoint, output_endpoint)
        self.on_membership(self.directory.handle_ready(address))

    def handle_gone(self, rank: int, *, is_own_fault: bool) -> None:
        """The process of this rank is gone: what it has had awaits the next one."""
        if not is_own_fault:
            self._forget_rebuilding(rank)
        for home in [self.owners.own(rank), *self.owners.hosted(rank)]:
            if home is not None:
                self._died_ns[home] = time.monotonic_ns()
                self.on_membership(self.directory.handle_gone(home))
        self._lose(self.owners.handle_gone(rank, is_own_fault=is_own_fault))

    def _forget_rebuilding(self, rank: int) -> None:
        """Its process died of no stream, whatever it was at."""
        position = REBUILDING_AT if self.folder is None else DISK_REBUILDING_AT
        for home in [self.owners.own(rank), *self.owners.begun(rank)]:
            if home in self._journals and home in self._terms:
                with contextlib.suppress(OSError):  # of a disk; then it counts
                    forget_rebuilding(self._journals[home], position, self._terms[home])

    def handle_given_up(
        self, rank: int, ready: Container[int], excluded: Container[int]
    ) -> tuple[int, int] | None:
        """A rank is given up. Returns its home and the rank that gets it, not an `excluded` one,
        and one that is READY if there is any; None if it is lost, as it is without a journal.
        """
        home, left = self.owners.own(rank), list[int]()
        if self.journal(rank) is not None:
            left = [other for other in range(self.owners.count) if other not in excluded]
            left.sort(key=lambda other: other not in ready)
        host, lost = self.owners.handle_given_up(rank, left)
        self._lose([*lost, *([] if home is None or host is not None else [home])])
        return None if home is None or host is None else (home, host)

    # ---- what others need to know

    def host_for(
        self, message: ForeignCall | ForeignReply, ready: Mapping[int, ChildProcess]
    ) -> int | None:
        """The rank whose process is to get a message of another, if there is one; see `deliver`."""
        home = deliver(message, self._epochs(ready))
        return None if home is None else self.owners.host(home)

    def _epochs(self, ready: Mapping[int, ChildProcess]) -> dict[int, int]:
        """{home: epoch of the process that has it}, of the processes that are READY by rank."""
        found: dict[int, int] = {}
        for rank, child in ready.items():
            for home in [self.owners.own(rank), *self.owners.hosted(rank)]:
                if home is not None:
                    found[home] = child.epoch
        return found

    def states(
        self, ready: Mapping[int, ChildProcess], failed: Mapping[int, str]
    ) -> FrontendStates:
        """For every frontend."""
        empty = [self.owners.own(rank) for rank in failed]
        lost = [*self.owners.lost(), *(home for home in empty if home is not None)]
        restarts = {rank: starts - 1 for rank, starts in sorted(self._starts.items())}
        return FrontendStates(
            self._epochs(ready), dict(failed), self.owners.homes, sorted(lost), restarts
        )

    async def ask(self, child: ChildProcess, home: int, term: int, timeout_s: float) -> None:
        """Task: ask a process that is READY to go on with a home beside its own.

        One that takes nothing for `timeout_s` is asked again, until it ends: then its next one is.
        """
        while (journal := self._journals.get(home)) is not None and child.process.exit is None:
            try:
                await child.send(HostHome(home, term, ["journal"]), timeout_s, [journal])
            except trio.BrokenResourceError:
                pass
            except trio.TooSlowError:
                continue
            else:
                self.owners.handle_begun(home)  # it was alive, and may die of it
            return
