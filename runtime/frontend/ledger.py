"""Ledger of a frontend's requests in flight: what was promised, to whom, and how far it came.

A token is written down here before anyone is offered it; an output counts only if it comes from
the engine that has the request, names the current attempt, and begins at exactly the next index.
Everything else is refused and counted by reason, so that duplicates, late messages of dead engines
and zombies vanish by construction.

*Attempts* are numbered through the whole ledger, in a range of its home's term, and never used
twice, so that an id may be used again after its request ended, here or by a successor. Each sending
of a request is a new attempt, also when an engine said in `ResyncReply` that it does not know it:
a reply that comes twice then names an old attempt and sends nothing, and an engine never sees one
attempt twice.

Whatever this returns for sending may get lost or be refused by the channel (`PeerNotConnected`):
every link generation begins with a `Resync`, which repeats what is wanted, from which index, with
which credit, and by omission what is not. So nothing here has to be sent again by anyone else.

Sans-IO: messages and times in, messages and decisions out.
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

import attrs

from ...engine.errors import NOT_BEGUN, EngineDied, EngineError
from ...engine.messages import (
    AddRequest,
    FinishReason,
    Grant,
    GrantCredit,
    LiveRequest,
    RequestOutput,
    Resync,
    ResyncReply,
    StepOutputs,
)
from ...transports.links.channel import Peer
from ..errors import RequestIdInUse
from ..journal.judgement import Refusal, judge
from ..journal.records import Placement
from .latencies import Latencies
from .ledger_entry import (
    END_OF_REASON,
    Accepted,
    BeginTrace,
    LedgerEntry,
    LedgerStatus,
    Numerics,
    RequestSink,
    Send,
)
from .placed_requests import PlacedRequests
from .replay_policy import ReplayPolicy

# More than a frontend can send in its life; terms up to 2**31 leave it in 63 bits.
ATTEMPTS_OF_A_TERM = 2**32

_NOT_HEARD: Final = -math.inf


@attrs.define(eq=False)
class Ledger:
    """Requests in flight of one frontend. Bounded by admission."""

    # Under which it owns its home: engines know that by rank, so later owners must not repeat it.
    term: int = attrs.field(default=0, kw_only=True)
    # Requests between two engines, or before the first.
    replays: ReplayPolicy = attrs.field(factory=ReplayPolicy, kw_only=True)
    # Requests that an engine has.
    placed: PlacedRequests = attrs.field(factory=PlacedRequests, init=False)

    # How many outputs were refused, by reason.
    refused: Counter[Refusal] = attrs.field(factory=Counter, init=False)
    # How many requests ended, by their end.
    ended: Counter[LedgerStatus] = attrs.field(factory=Counter, init=False)
    # Finished requests that had all the tokens they may have.
    ended_by_length: int = attrs.field(default=0, init=False)
    latencies: Latencies = attrs.field(factory=Latencies, init=False)
    # Attempts beyond requests' first, those to other engines, and of these the inexact ones.
    sent_again: int = attrs.field(default=0, init=False)
    migrated: int = attrs.field(default=0, init=False)
    migrated_inexactly: int = attrs.field(default=0, init=False)
    begin_trace: BeginTrace | None = attrs.field(default=None, init=False)
    # The last attempt that was given.
    _attempts: int = attrs.field(init=False)
    _entries: dict[str, LedgerEntry] = attrs.field(factory=dict, init=False)
    # When each engine's last message came; streams that had a token in it have the same object.
    _heard_at: dict[Peer, float] = attrs.field(factory=dict, init=False)
    # Facts of the message that is being applied: an index was not next, an engine queued a request.
    _out_of_order: bool = attrs.field(default=False, init=False)
    _queued: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._attempts = self.term * ATTEMPTS_OF_A_TERM

    def __len__(self) -> int:
        """How many requests are in flight."""
        return len(self._entries)

    def get(self, request_id: str) -> LedgerEntry | None:
        """The entry of a request in flight."""
        return self._entries.get(request_id)

    def placement(self, request_id: str) -> Placement:
        """Engine and attempt of a request in flight."""
        return self._entries[request_id].placement()

    def entries(self) -> Iterable[LedgerEntry]:
        """The requests in flight, the oldest first."""
        return self._entries.values()

    def handle_add(
        self,
        request: AddRequest,
        peer: Peer,
        now: float,
        sink: RequestSink | None = None,
        *,
        ready: Numerics | None = None,
    ) -> AddRequest:
        """Write a request down for this engine and return the message to send it.

        A replay must match `ready`. The attempt is numbered here. Raises `RequestIdInUse`.
        """
        entry = self._write_down(request, now, sink)
        self._place(entry, peer, ready)
        return self._message(entry)

    def handle_add_waiting(
        self, request: AddRequest, error: EngineError, now: float, sink: RequestSink | None = None
    ) -> LedgerEntry:
        """Add a request without an engine: it waits for one, or ends with the error."""
        entry = self._write_down(request, now, sink)
        entry.state.handle_lost(now)
        self.replays.handle_lost(entry, error, now)
        return entry

    def handle_adopted(
        self,
        request: AddRequest,
        peer: Peer | None,
        now: float,
        sink: RequestSink | None = None,
        *,
        ready: Numerics,
    ) -> LedgerEntry:
        """Go on with a request of an earlier term, as it was sent last; without engine it waits.

        In the order of attempts. Nothing is sent: the RESYNC names it. Raises `RequestIdInUse`.
        """
        if peer is None:
            entry = self.handle_add_waiting(request, EngineDied("an engine", "is gone"), now, sink)
        else:
            entry = self._write_down(request, now, sink)
        entry.handle_adopted(request.attempt, peer, ready)
        if peer is not None:
            self.placed.add(entry)
        return entry

    def _write_down(self, request: AddRequest, now: float, sink: RequestSink | None) -> LedgerEntry:
        if request.request_id in self._entries:
            raise RequestIdInUse(request.request_id)
        entry = self._entries[request.request_id] = LedgerEntry.begin(request, now, sink)
        if self.begin_trace is not None:
            entry.state.observer = self.begin_trace(entry, now)
        return entry

    def handle_outputs(self, peer: Peer, outputs: StepOutputs, now: float) -> Accepted:
        """Write new tokens down, end what is finished; what counts, in order, for delivery."""
        self._out_of_order = self._queued = False
        tokens = self._accept_columns(peer, outputs, now)
        whole, refused = self._accept_outputs(peer, outputs.outputs, now)
        self._heard_at[peer] = now
        return Accepted(tokens, whole, self._out_of_order, refused, self._queued)

    def _accept_columns(self, peer: Peer, outputs: StepOutputs, now: float) -> list[LedgerEntry]:
        """The hot path: one more token for each of these."""
        accepted, late = [], 0
        heard_at = self._heard_at.get(peer, _NOT_HEARD)
        attempts = outputs.attempts
        entries = map(self.placed.of(peer).get, attempts)
        rows = zip(attempts, entries, outputs.indices, outputs.token_ids, strict=True)
        for attempt, entry, index, token_id in rows:
            if entry is None or index != len(token_ids := entry.token_ids):
                self._refuse(self._judge_row(attempt, entry, index))
                continue
            token_ids.append(token_id)
            if entry.token_at is heard_at:
                entry.token_at = now
            else:
                late += 1
                entry.handle_tokens(now, self.latencies)
            accepted.append(entry)
        if len(accepted) > late:
            self.latencies.inter_token.observe(now - heard_at, len(accepted) - late)
        return accepted

    def _accept_outputs(
        self, peer: Peer, outputs: list[RequestOutput], now: float
    ) -> tuple[list[tuple[LedgerEntry, RequestOutput]], list[LedgerEntry]]:
        accepted, refused = [], []
        for output in outputs:
            entry = self._entries.get(output.request_id)
            refusal = self._judge(entry, peer, output)
            if refusal is not None or entry is None:
                self._refuse(refusal or Refusal.UNKNOWN_REQUEST)
                continue
            if (error := NOT_BEGUN.get(output.error_code)) is not None:
                self._unplace(entry, now)
                self.replays.handle_refused(entry, error(), now)
                refused.append(entry)
                continue
            if output.events:
                entry.handle_events(output.events)
                self._queued |= entry.is_queued
                if not entry.request.events:
                    continue
            if output.token_ids:
                entry.token_ids.extend(output.token_ids)
                entry.handle_tokens(now, self.latencies, output.prefill_s)
            if output.finish_reason is not None:
                self.ended_by_length += output.finish_reason is FinishReason.LENGTH
                self._end(entry, END_OF_REASON[output.finish_reason], now)
            accepted.append((entry, output))
        return accepted, refused

    def handle_peer_up(self, peer: Peer) -> Resync:
        """A link generation began: the first message to send on it."""
        return Resync(
            [
                LiveRequest(entry.request.request_id, attempt, len(entry.token_ids), entry.credit)
                for attempt, entry in self.placed.of(peer).items()
            ]
        )

    def handle_resync_reply(self, peer: Peer, reply: ResyncReply, now: float) -> list[LedgerEntry]:
        """The engine does not know these. Returns them, which wait as those of a dead one do: who
        may have them may have changed since they were sent.
        """
        lost = []
        for key in reply.unknown:
            entry = self._entries.get(key.request_id)
            if entry is None or entry.peer != peer or entry.attempt != key.attempt:
                continue
            self._lose(entry, EngineDied(str(peer), "its link failed"), now)
            lost.append(entry)
        return lost

    def handle_peer_gone(self, peer: Peer, cause: str, now: float) -> list[LedgerEntry]:
        """This incarnation of an engine will not come back. Returns its requests, which wait."""
        entries = list(self.placed.of(peer).values())
        for entry in entries:
            entry.attempts -= entry.is_queued
            self._lose(entry, EngineDied(str(peer), cause), now)
        self._heard_at.pop(peer, None)
        return entries

    def handle_moved(self, entry: LedgerEntry, now: float) -> Send | None:
        """Take a request back from an engine that is silent or empties: another goes on at once.

        Returns the abort, for when it is heard; that was no attempt.
        """
        assert entry.peer is not None
        abort, error = entry.abort(), EngineDied(str(entry.peer), "has given it away")
        entry.attempts -= 1
        self._lose(entry, error, now)
        return abort

    def handle_replay(
        self,
        entry: LedgerEntry,
        peer: Peer,
        now: float,
        *,
        ready: Numerics | None = None,
        exact: bool = True,
    ) -> AddRequest:
        """A request without engine goes to this one; returns the message for it."""
        assert entry.peer is None
        self.replays.handle_gone(entry)
        self._place(entry, peer, ready)
        entry.state.handle_placed(now)
        self.sent_again += entry.is_replayed
        entry.state.replays += entry.is_replayed
        self.migrated += entry.is_moved
        self.migrated_inexactly += not exact
        return self._message(entry)

    def handle_give_up(self, entry: LedgerEntry, now: float) -> None:
        """No engine goes on with a request that waits: it failed."""
        self._end(entry, LedgerStatus.FAILED, now)

    def handle_abort(self, request_id: str, now: float) -> Send | None:
        """The client wants no more. Never waits, so that it works while a task is cancelled.

        None if no engine has it: the request has ended, or is between two engines.
        """
        return self._end_here(request_id, LedgerStatus.ABORTED, now)

    def handle_stopped(self, request_id: str, now: float) -> Send | None:
        """A stop string ended the request in this process: as an abort, but it finished."""
        return self._end_here(request_id, LedgerStatus.FINISHED, now)

    def handle_grant(self, request_id: str, credit: int) -> Send | None:
        """The client consumed: the engine may schedule up to this output index (exclusive).

        None if that is not more than before, or no engine has it now.
        """
        entry = self._entries.get(request_id)
        if entry is None or entry.credit is None or credit <= entry.credit:
            return None
        entry.credit = credit
        if entry.peer is None:
            return None
        return Send(entry.peer, GrantCredit([Grant(request_id, entry.attempt, credit)]))

    def check_invariants(self) -> None:
        """Both indexes agree, attempts are unique, no entry has ended."""
        attempts = [entry.attempt for entry in self._entries.values() if entry.attempt]
        assert len(set(attempts)) == len(attempts)
        assert all(0 < attempt <= self._attempts for attempt in attempts)
        for entry in self._entries.values():
            entry.check_invariants()
        self.placed.check_invariants(self._entries.values())
        self.replays.check_invariants(self._entries)

    def _refuse(self, refusal: Refusal) -> None:
        self.refused[refusal] += 1
        if refusal is Refusal.REPEATED or refusal is Refusal.GAP:
            self._out_of_order = True

    def _judge(
        self, entry: LedgerEntry | None, peer: Peer, output: RequestOutput
    ) -> Refusal | None:
        return judge(entry, peer, output)

    def _judge_row(self, attempt: int, entry: LedgerEntry | None, index: int) -> Refusal:
        """Why a row is not exactly next. Without entry its request may live on elsewhere."""
        if entry is None:
            is_elsewhere = self.placed.has_attempt(attempt)
            return Refusal.OTHER_ENGINE if is_elsewhere else Refusal.UNKNOWN_REQUEST
        return Refusal.REPEATED if index < len(entry.token_ids) else Refusal.GAP

    def _message(self, entry: LedgerEntry) -> AddRequest:
        return entry.message()

    def _place(self, entry: LedgerEntry, peer: Peer, ready: Numerics | None = None) -> None:
        """A new attempt of this request, on this engine."""
        self._attempts += 1
        entry.handle_placed(self._attempts, peer, ready)
        self.placed.add(entry)

    def _lose(self, entry: LedgerEntry, error: EngineDied, now: float) -> None:
        self._unplace(entry, now)
        self.replays.handle_lost(entry, error, now)

    def _unplace(self, entry: LedgerEntry, now: float) -> None:
        """No engine has it from now on; it waits for one, which may be the same again."""
        assert entry.peer is not None
        self._heard_at.pop(entry.peer, None)
        self.placed.remove(entry)
        entry.state.handle_lost(now)

    def _end(self, entry: LedgerEntry, end: LedgerStatus, now: float) -> None:
        """The only way out of the ledger: counted by its end, and out of both indexes."""
        entry.state.handle_end(end, now)
        self.ended[end] += 1
        entry.count_end(self.latencies, now)
        self.placed.remove(entry)
        self.replays.handle_gone(entry)
        del self._entries[entry.request.request_id]

    def _end_here(self, request_id: str, end: LedgerStatus, now: float) -> Send | None:
        """End a request from this side; returns the abort for the engine that has it."""
        entry = self._entries.get(request_id)
        if entry is None:
            return None
        abort = entry.abort()
        self._end(entry, end, now)
        return abort
