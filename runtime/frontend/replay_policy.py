"""Replay policy: which engine goes on with a request whose engine is gone, when, or why none does.

- *Where to*: an engine of the numerics id that the request began with (if it did), which computes
  bitwise (or the request has no token yet) and holds it. With `inexact_ok` any that holds it, once
  no engine of that id can come back, or the wait is over. A request that names its engine's rank
  goes to the next life of that rank; to others once the wait is over, or the rank was given up.
- *When*: at once, or with the next engine that comes up, up to `replay_wait_s` after the loss. They
  are asked for in the order in which engines serve: priority, then admission.
- *Why not*: the wait is over, the request was sent `replay_attempts_max` times without a new token,
  or nothing can go on with it. The client then gets the error of the loss, which is retryable.

One that still waits in the queue of its engine may go elsewhere, too: a death moves all to those
that are left, which queue what they cannot run, while the successor, back in no time, would idle.

A request whose form comes from a journal goes nowhere before that was checked, however long it
takes: whoever checks it has a bound of his own.

A request that an engine refuses because it drains has lost no attempt, and goes on waiting from
when it was lost first. Nor has one that still waited in the queue of an engine that died: where
more come over than run at once, the last have waited through a dozen deaths in a minute.

Sans-IO: times in, decisions out. Bounded by the ledger's entries, which admission bounds.
"""

import math
from collections.abc import Iterable, Mapping

import attrs

from ...engine.control_messages import EngineReady
from ...engine.errors import EngineDied, EngineError
from ...transports.links.channel import Peer
from ..config import ReplaySettings
from .ledger_entry import LedgerEntry, LedgerStatus


@attrs.frozen
class PlaceOn:
    """Send it to one of these; `exact`: its tokens will be those of the undisturbed run."""

    entry: LedgerEntry
    peers: list[Peer]
    exact: bool


@attrs.frozen
class Fail:
    """Tell the client: the request ended with this error."""

    entry: LedgerEntry
    error: Exception


ReplayDecision = PlaceOn | Fail


@attrs.define(eq=False)
class ReplayPolicy:
    """The requests of one frontend that have no engine; each once, whatever its status was."""

    settings: ReplaySettings = attrs.field(factory=ReplaySettings)

    # Engines that take work now, by what they said of themselves.
    _engines: dict[Peer, EngineReady] = attrs.field(factory=dict, init=False)
    # Numerics ids and ranks of the engines that are up or may come up again.
    _expected: frozenset[str] = attrs.field(default=frozenset(), init=False)
    _ranks: frozenset[int] = attrs.field(default=frozenset(), init=False)
    # A dict for its order; thousands may come and go at once.
    _waiting: dict[LedgerEntry, None] = attrs.field(factory=dict, init=False)

    def __len__(self) -> int:
        """How many requests have no engine."""
        return len(self._waiting)

    def handle_engines(
        self,
        engines: Mapping[Peer, EngineReady],
        expected: frozenset[str] = frozenset(),
        ranks: frozenset[int] = frozenset(),
    ) -> None:
        """Note the engines that take work now; `expected` ids, of `ranks`, may come back
        besides."""
        self._engines = dict(engines)
        self._expected, self._ranks = expected, ranks

    def handle_lost(self, entry: LedgerEntry, error: EngineError, now: float) -> None:
        """Note that an engine is gone, or has lost the request: it waits, or `decide` ends it."""
        entry.lost_at, entry.lost_by = now, error
        self._waiting[entry] = None

    def handle_refused(self, entry: LedgerEntry, error: EngineError, now: float) -> None:
        """An engine has not begun it, and will not: it waits on, and that was no attempt."""
        entry.attempts -= 1
        if entry.lost_at == math.inf:
            entry.lost_at, entry.lost_by = now, error
        self._waiting[entry] = None

    def handle_gone(self, entry: LedgerEntry) -> None:
        """Note that a request has an engine again, or has ended; harmless if it did not wait."""
        self._waiting.pop(entry, None)

    def decide(self, now: float, queued: Iterable[LedgerEntry] = ()) -> list[ReplayDecision]:
        """Decide on each request that need not wait any more, in the order of their turns; and
        where each of `queued`, which wait in the queue of an engine, would go on as exactly."""
        decisions: list[ReplayDecision | None] = []
        for entry in sorted([*self._waiting, *queued], key=_turn):
            if entry.peer is None:
                decisions.append(self._decide(entry, now))
            elif entry.is_at_home:
                continue  # where its client wants it
            elif exact := _exact(self._allowed(entry, any_rank=True), entry):
                decisions.append(PlaceOn(entry, exact, True))
        return [decision for decision in decisions if decision is not None]

    def unchecked(self) -> list[LedgerEntry]:
        """Requests whose forms are to be checked first, in the order in which they were lost."""
        return [entry for entry in self._waiting if entry.awaits_check]

    def next_deadline(self) -> float:
        """When `decide` gives up the next one; inf: none waits."""
        return min(map(self._late_at, self._waiting), default=math.inf)

    def position(self, entry: LedgerEntry) -> int:
        """How many wait that have their turn before this one."""
        return sum(_turn(other) < _turn(entry) for other in self._waiting)

    def _decide(self, entry: LedgerEntry, now: float) -> ReplayDecision | None:
        if entry.awaits_check:
            return None
        is_late = now >= self._late_at(entry)
        if entry.attempts < self.settings.replay_attempts_max:
            engines = self._allowed(entry, any_rank=is_late)
            if exact := _exact(engines, entry):
                return PlaceOn(entry, exact, True)
            holding = [peer for peer, ready in engines.items() if holds(ready, entry)]
            may_return = is_reproducible(entry) and entry.numerics_id in {"", *self._expected}
            if entry.request.inexact_ok and holding and (is_late or not may_return):
                return PlaceOn(entry, holding, False)
        return Fail(entry, self._error_of(entry)) if is_late else None

    def _allowed(self, entry: LedgerEntry, *, any_rank: bool) -> Mapping[Peer, EngineReady]:
        """Engines that a request may go to: first those of its rank, if it names one."""
        rank = entry.request.engine
        if rank is None:
            return self._engines
        own = {peer: ready for peer, ready in self._engines.items() if peer.rank == rank}
        if any_rank or rank not in self._ranks:
            exact = _exact(own, entry)
            return {peer: own[peer] for peer in exact} or self._engines
        return own

    def _late_at(self, entry: LedgerEntry) -> float:
        """When it is given up: at once if no engine would help."""
        if entry.awaits_check:
            return math.inf
        is_helpless = not (is_reproducible(entry) or entry.request.inexact_ok)
        if is_helpless or entry.attempts >= self.settings.replay_attempts_max:
            return entry.lost_at
        return entry.lost_at + self.settings.replay_wait_s

    def _error_of(self, entry: LedgerEntry) -> EngineError:
        error, settings = entry.lost_by, self.settings
        assert error is not None
        if not isinstance(error, EngineDied):
            return error
        if entry.attempts >= settings.replay_attempts_max:
            sequel = f"the request was sent {entry.attempts} times without a new token"
        elif not (is_reproducible(entry) or entry.request.inexact_ok):
            sequel = "what it computes is not the same twice (`inexact_ok` lets another go on)"
        else:
            what = "engine that could go on with it exactly" if self._engines else "engine"
            sequel = f"no {what} came up within {settings.replay_wait_s:g} s"
        return attrs.evolve(error, sequel=sequel)

    def check_invariants(self, entries: Mapping[str, LedgerEntry]) -> None:
        """Exactly those of the ledger's entries wait that have no engine."""
        unplaced = {each for each in entries.values() if each.state.status is LedgerStatus.UNPLACED}
        assert set(self._waiting) == unplaced
        for entry in entries.values():
            waits = entry.state.status is LedgerStatus.UNPLACED
            assert 0 <= entry.attempts <= self.settings.replay_attempts_max
            assert (entry.lost_by is None) == (entry.lost_at == math.inf)
            assert not waits or entry.lost_at <= entry.state.entered_at


def _exact(engines: Mapping[Peer, EngineReady], entry: LedgerEntry) -> list[Peer]:
    """Which of these go on with it as the engine would that it began on."""
    return [
        peer for peer, ready in engines.items() if holds(ready, entry) and is_exact(ready, entry)
    ]


def holds(ready: EngineReady, entry: LedgerEntry) -> bool:
    """Whether the engine's limits hold the request to its end, which admission has settled."""
    request = entry.request
    tokens = len(request.prompt_token_ids) + (request.sampling.max_tokens or 1)
    return tokens <= ready.max_model_len


def is_exact(ready: EngineReady, entry: LedgerEntry) -> bool:
    """Whether the engine gives the very tokens that the request's first one would have given."""
    return entry.numerics_id in ("", ready.numerics_id) and is_reproducible(entry)


def is_reproducible(entry: LedgerEntry) -> bool:
    """Whether any engine can give the tokens that it has."""
    return entry.is_bitwise or not entry.token_ids


def _turn(entry: LedgerEntry) -> tuple[int, int, int]:
    request = entry.request
    return (request.priority, request.admitted_ns, request.choice)
