"""Placed requests: which engine has which requests of a frontend, under which attempts.

The index by which an engine's message, which names attempts alone, finds its requests; it is also
the frontend's exact count of what it has at each engine. Requests between two engines are not here.

Sans-IO.
"""

import itertools
from collections.abc import Container, Iterable, Mapping
from typing import Final

import attrs

from ...transports.links.channel import Peer
from .ledger_entry import LedgerEntry

_NONE: Final[dict[int, LedgerEntry]] = {}


@attrs.define(eq=False)
class PlacedRequests:
    """Requests of one frontend, by engine and attempt, which name one; in the order of placing."""

    _of: dict[Peer, dict[int, LedgerEntry]] = attrs.field(factory=dict, init=False)

    def of(self, peer: Peer) -> Mapping[int, LedgerEntry]:
        """Requests of this engine, by attempt."""
        return self._of.get(peer, _NONE)

    def peers(self) -> list[Peer]:
        """Engines that have requests."""
        return list(self._of)

    def count(self, peer: Peer, *, up_to: int | None = None) -> int:
        """How many requests this engine has, or had when it had taken this attempt."""
        placed = self._of.get(peer, _NONE)
        if up_to is None:
            return len(placed)
        later = itertools.takewhile(lambda attempt: attempt > up_to, reversed(placed))
        return len(placed) - sum(1 for _ in later)

    def has_attempt(self, attempt: int) -> bool:
        """Whether any engine has a request as this one."""
        return any(attempt in entries for entries in self._of.values())

    def queued(self, emptied: Container[Peer] = ()) -> list[LedgerEntry]:
        """Requests that still wait in the queue of their engine, by what engines say; of `emptied`
        engines, whether or not they have begun them, all."""
        return [
            each
            for peer, placed in self._of.items()
            for each in placed.values()
            if each.is_queued or peer in emptied
        ]

    def add(self, entry: LedgerEntry) -> None:
        """Add a request under its engine and its attempt, which is the newest of all."""
        assert entry.peer is not None
        self._of.setdefault(entry.peer, {})[entry.attempt] = entry

    def remove(self, entry: LedgerEntry) -> None:
        """No engine has it from now on; harmless if none has. One without requests is not kept."""
        if entry.peer is None:
            return
        placed = self._of[entry.peer]
        del placed[entry.attempt]
        if not placed:
            del self._of[entry.peer]
        entry.handle_displaced()

    def check_invariants(self, entries: Iterable[LedgerEntry]) -> None:
        """Exactly those of these are here that an engine has, under the attempt they say."""
        found = {
            attempt: (peer, entry)
            for peer, placed in self._of.items()
            for attempt, entry in placed.items()
        }
        assert all(self._of.values()), "an engine without requests is kept"
        for placed in self._of.values():
            assert list(placed) == sorted(placed), "not in the order of attempts"
        assert len(found) == sum(map(len, self._of.values()))
        for entry in entries:
            assert found.pop(entry.attempt, (None, entry)) == (entry.peer, entry)
        assert not found
