"""Client of all engines in a frontend: requests out, aborts that cannot be lost, outputs in.

Composes the ledger (what is in flight), the balancer (who gets the next one), the view of engines
(who is there) and one channel to all of them. Everything a caller does is synchronous, so that a
cancelled task cannot leave a request half submitted or half aborted.

A request whose engine is gone, or drains, waits in the ledger for what `replay_policy` decides:
asked whenever an engine may have come to take it, and by the background task `replay-deadlines`.
One whose engine is silent, or empties, goes on elsewhere where that can be exact, and else stays.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

import attrs
import trio

from ...engine.control_messages import EngineReady
from ...engine.errors import EngineDraining
from ...engine.messages import (
    AddRequest,
    EngineStatistics,
    FinishReason,
    RequestEvent,
    RequestEventKind,
    RequestOutput,
    ResyncReply,
    StatisticsReport,
    StepOutputs,
    Utility,
    UtilityReply,
)
from ...nurseries.tasks.changes import Changes
from ...transports.array import Frame
from ...transports.links.channel import (
    ChannelEvent,
    HubEnd,
    Misread,
    Peer,
    PeerDown,
    PeerHeard,
    PeerNotConnected,
    PeerSilent,
    PeerUp,
    Received,
)
from ..errors import NoEngine, ProcessingFailed, ServerDraining
from ..journal.journal import AdmissionNote, Journal
from ..messages import EngineMembership
from .engine_view import EngineView
from .ledger import Ledger
from .ledger_entry import NOTHING, Accepted, LedgerEntry, LedgerStatus, RequestSink, Send
from .load_balancer import LeastLoaded
from .replay_policy import Fail, PlaceOn
from .utility_calls import UTILITY_TIMEOUT_S, UtilityCalls

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class CoreClient:
    """Client of all engines in one frontend."""

    channel: HubEnd
    ledger: Ledger
    balancer: LeastLoaded
    # The journal; None if no later life is to go on with its streams.
    journal: Journal | None = None
    # The host's, for the time of admission; a simulated one in simulations. Engines hear of ages.
    clock_ns: Callable[[], int] = time.monotonic_ns
    engines: EngineView = attrs.field(factory=EngineView, init=False)
    statistics: dict[Peer, EngineStatistics] = attrs.field(factory=dict, init=False)
    # An engine came, went or was connected.
    engines_changed: Changes = attrs.field(factory=Changes, init=False)
    # Requests began to wait for an engine.
    replays_changed: Changes = attrs.field(factory=Changes, init=False)
    draining: bool = attrs.field(default=False, init=False)
    # The ledger does not have all yet that a life before this one left at engines. A RESYNC would
    # have them abort what it does not name, so that none goes out before `handle_rebuilt`.
    is_rebuilding: bool = attrs.field(default=False, init=False)
    # Engines whose link is up and has to wait for that; nothing of a request may go before it.
    _links_waiting: set[Peer] = attrs.field(factory=set, init=False)
    # Engines that take work.
    _taking: dict[Peer, EngineReady] = attrs.field(factory=dict, init=False)
    _calls: UtilityCalls = attrs.field(factory=UtilityCalls, init=False)

    # ---- requests

    def submit(
        self,
        requests: Sequence[tuple[AddRequest, RequestSink]],
        *,
        note: AdmissionNote | None = None,
        credit: int | None = None,
    ) -> None:
        """Write requests down and send them, all to the engine that they name, or that has least to
        do. Where none takes work now but one is expected back, they wait for it, as those that it
        had do. With a note, the journal has them, and that their client has given this credit.

        All or none. Raises `NoEngine`, `RequestIdInUse`, `RequestQuarantined`, `Overloaded`,
        `JournalStreamTooLarge`, or as encoding does.
        """
        if self.draining:
            raise ServerDraining()
        peer = self._choose(requests[0][0].engine)
        now, admitted_ns = trio.current_time(), self.clock_ns()
        added: list[tuple[AddRequest, RequestSink]] = []
        waiting: list[LedgerEntry] = []
        try:
            for request, sink in requests:
                self.engines.judge(request, admitted_ns / 1e9)
                request.admitted_ns = admitted_ns
                if isinstance(peer, NoEngine):
                    waiting.append(self.ledger.handle_add_waiting(request, peer, now, sink))
                else:
                    ready = self._taking[peer]
                    request = self.ledger.handle_add(request, peer, now, sink, ready=ready)
                added.append((request, sink))
            if note is not None and self.journal is not None:
                placement = self.ledger.placement(added[0][0].request_id)
                self.journal.admit(note, added, credit, placement)
            if isinstance(peer, Peer):
                for message, _ in added:
                    self._send(peer, message)
        except BaseException:
            for _, sink in added:  # one that cannot be encoded must not wait for the next RESYNC
                self.abort(sink)
            if note is not None and self.journal is not None:
                self.journal.forget(note.name)
            raise
        self.announce_waiting(waiting)

    def abort(self, sink: RequestSink, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a request wherever it is; harmless when it has ended. Works in a cancelled task."""
        if self._is_current(sink):
            self._note_end(sink, reason)
            self._carry_out(self.ledger.handle_abort(sink.request_id, trio.current_time()))

    def stop(self, sink: RequestSink) -> None:
        """The request ended here, by a stop string; its engine gets an abort."""
        if self._is_current(sink):
            self._note_end(sink, FinishReason.STOP)
            self._carry_out(self.ledger.handle_stopped(sink.request_id, trio.current_time()))

    def grant(self, sink: RequestSink, credit: int) -> None:
        """The engine may schedule the request up to this output index."""
        if self._is_current(sink):
            self._carry_out(self.ledger.handle_grant(sink.request_id, credit))

    def note_granted(self, sink: RequestSink, credit: int) -> None:
        """The client takes tokens up to this index, whatever its reader does."""
        if self.journal is not None:
            self.journal.grant(sink.request_id, credit)

    def _is_current(self, sink: RequestSink) -> bool:
        """Whether it is the request in flight, and not an ended one whose id is used again."""
        return (entry := self.ledger.get(sink.request_id)) is not None and entry.sink is sink

    def _note_end(self, sink: RequestSink, reason: FinishReason) -> None:
        if self.journal is not None:
            self.journal.end_choice(sink.request_id, reason)

    # ---- engines

    def apply_membership(self, membership: EngineMembership) -> None:
        """Numbered full snapshots, the latest wins; streams of a gone engine go on elsewhere."""
        gone = self.engines.handle_membership(membership)
        if gone is None:
            return
        self.channel.allow({key: frozenset(r) for key, r in membership.link_keys.items()})
        lost = [entry for peer, cause in gone.items() for entry in self._forget(peer, cause)]
        self._engines_changed()
        self.announce_waiting(lost)

    def handle_rebuilt(self) -> None:
        """The ledger is whole: links begin, streams of engines that are gone go on elsewhere."""
        self.is_rebuilding = False
        gone = self.engines.missing(self.ledger.placed.peers())
        lost = [entry for peer, cause in gone.items() for entry in self._forget(peer, cause)]
        waiting, self._links_waiting = self._links_waiting, set()
        for peer in sorted(waiting):
            self._begin_link(peer)
        self._engines_changed()
        self.announce_waiting(lost)

    def _forget(self, peer: Peer, cause: str) -> list[LedgerEntry]:
        """An engine is gone: drop its link, counts and calls. Returns its requests, which wait."""
        self.channel.forget(peer)
        self._links_waiting.discard(peer)
        self.engines.handle_forgotten(peer)
        self.statistics.pop(peer, None)
        self._calls.handle_gone(peer)
        lost = self.ledger.handle_peer_gone(peer, cause, trio.current_time())
        if lost:
            logger.info("%s %s: %d requests are to go on elsewhere", peer, cause, len(lost))
        return lost

    def _engines_changed(self) -> None:
        """Choose among the engines that take work now, and place the waiting requests."""
        self._taking = self.engines.taking()
        self.balancer.set_engines(self._taking)
        expected = self.engines.expected(), self.engines.ranks()
        self.ledger.replays.handle_engines(self._taking, *expected)
        self.place_waiting()
        self.engines_changed.notify()

    def place_waiting(self) -> None:
        """Send what waits to engines that fit, and end what has waited too long."""
        now, now_ns, failed = trio.current_time(), self.clock_ns(), 0
        placed = Counter[Peer]()
        of_parents: dict[str, Peer] = {}  # choices of one request share their prompt
        moving = Counter[Peer]()  # how many more these will have
        emptied = self.engines.emptied
        may_move = len(self._taking) > 1 or emptied or self.engines.draining
        queued = self.ledger.placed.queued(emptied) if may_move else ()
        for decision in self.ledger.replays.decide(now, queued):
            entry = decision.entry
            if self.ledger.get(entry.request.request_id) is not entry:
                continue  # the end of another one took it along
            match self.engines.judged(decision, now_ns / 1e9):
                case PlaceOn(peers=peers, exact=exact):
                    peer = of_parents.get(parent := entry.request.parent)
                    if peer not in peers:
                        peer = self.balancer.choose(self.ledger.placed.count, peers)
                    if entry.peer in emptied:
                        self._carry_out(self.ledger.handle_moved(entry, now))
                    elif entry.peer is not None:
                        self._recall(entry, peer, moving)
                        continue
                    of_parents[parent or entry.request.request_id] = peer
                    self._replay(entry, peer, now_ns, exact=exact)
                    placed[peer] += 1
                case Fail(error=error):
                    failed += 1
                    self._carry_out(entry.abort())
                    self.ledger.handle_give_up(entry, now)
                    if entry.sink is not None:
                        entry.sink.fail(error)
                case _:
                    assert_never(decision)
        for peer, count in placed.items():
            logger.info("%d requests go on at %s", count, peer)
        if failed:
            logger.warning("%d requests ended, as no engine goes on with them", failed)

    def _recall(self, entry: LedgerEntry, peer: Peer, moving: Counter[Peer]) -> None:
        """Ask its engine to give it back, if that drains, or this one has less to do then, too."""
        has, count = entry.peer, self.ledger.placed.count
        assert has is not None
        is_less = count(peer) + moving[peer] + 1 < count(has) + moving[has]
        if has in self.engines.draining or is_less:
            moving.update({peer: 1, has: -1})
            self._carry_out(entry.recall())

    def _replay(self, entry: LedgerEntry, peer: Peer, now_ns: int, *, exact: bool) -> None:
        ready, now = self._taking[peer], trio.current_time()
        request = self.ledger.handle_replay(entry, peer, now, ready=ready, exact=exact)
        request.age_ns = max(0, now_ns - request.admitted_ns)
        if self.journal is not None:  # which has it before it is sent
            self.journal.place(entry.placement())
        self._send(peer, request)
        is_away = entry.request.engine is not None and not entry.is_at_home
        if (entry.request.events and entry.is_moved) or is_away or not exact:
            event = RequestEvent(RequestEventKind.MIGRATED, exact=exact)
            self.deliver(entry, entry.output_of(event))

    def announce_waiting(self, entries: Iterable[LedgerEntry]) -> None:
        """Tell the timer, and readers of events, which of these were not placed at once."""
        waiting = [entry for entry in entries if entry.state.status is LedgerStatus.UNPLACED]
        if not waiting:
            return
        self.replays_changed.notify()
        logger.info("%d requests wait for an engine", len(waiting))
        for entry in waiting:
            if entry.request.events and entry.state.status is LedgerStatus.UNPLACED:
                position = self.ledger.replays.position(entry)
                event = RequestEvent(RequestEventKind.QUEUED, position)
                self.deliver(entry, entry.output_of(event))

    def _choose(self, rank: int | None = None) -> Peer | NoEngine:
        """The engine of the next request, of this rank if it names one, or the error of one that
        waits for it in vain. Raises that error where none is expected.
        """
        named = None if rank is None else [peer for peer in self._taking if peer.rank == rank]
        try:
            return self.balancer.choose(self.ledger.placed.count, named)
        except NoEngine:
            error = self.engines.no_engine(rank)
            may_come = self.engines.expected() and (rank is None or rank in self.engines.ranks())
            if may_come and self.ledger.replays.settings.replay_wait_s > 0.0:
                return error
            raise error from None

    # ---- what engines say

    def handle_event(self, event: ChannelEvent) -> Accepted:
        """Apply one event; returns what is to be delivered, already written down."""
        match event:
            case PeerUp(peer=peer) if self.engines.is_over(peer):
                self.channel.forget(peer)  # its link was slower than the news of its end
            case PeerUp(peer=peer) if self.is_rebuilding:
                self._links_waiting.add(peer)
            case PeerUp(peer=peer):
                self._begin_link(peer)
                self._engines_changed()
            case PeerDown(peer=peer):
                self._links_waiting.discard(peer)
                self.engines.handle_down(peer)
                self._engines_changed()
            case PeerSilent(peer=peer, silent_s=silent_s):
                logger.warning("%s says nothing for %.1f s", peer, silent_s)
                self.engines.handle_silent(peer)
                self._engines_changed()
            case PeerHeard(peer=peer):
                logger.info("%s speaks again", peer)
                self.engines.handle_heard(peer)
                self._engines_changed()
            case Received(peer=peer, message=StepOutputs() as outputs):
                return self._handle_outputs(peer, outputs, event.frame)
            case Received(peer=peer, message=message):
                self._handle_message(peer, message)
            case Misread():
                pass  # what an engine did not say is missed by the next output
            case _:
                assert_never(event)
        return NOTHING

    def _begin_link(self, peer: Peer) -> None:
        self._send(peer, resync := self.ledger.handle_peer_up(peer))
        if resync.live:
            logger.info("%s: the link is up, %d requests go on", peer, len(resync.live))
        self.engines.handle_up(peer)

    def _handle_outputs(self, peer: Peer, outputs: StepOutputs, frame: Frame) -> Accepted:
        """Journal outputs that count before any is offered, or sent along in a replay."""
        accepted = self.ledger.handle_outputs(peer, outputs, trio.current_time())
        if self.journal is not None and (accepted.tokens or accepted.outputs or accepted.refused):
            self.journal.append_message(
                peer,
                frame,
                [output for _, output in accepted.outputs],
                [entry.request.request_id for entry in accepted.refused],
            )
        if accepted.out_of_order:
            self.channel.break_link(peer, "an output is missing or came twice")
        if accepted.refused:
            if any(output.error_code == EngineDraining.code for output in outputs.outputs):
                self.engines.handle_draining(peer)
            self._engines_changed()
            self.announce_waiting(accepted.refused)
        return accepted

    def _handle_message(self, peer: Peer, message: object) -> None:
        match message:
            case StatisticsReport():
                if self.engines.is_met(peer):  # it may have been forgotten while this waited
                    self.statistics[peer] = message.statistics
                    counted = self.ledger.placed.count(peer, up_to=message.last_attempt)
                    self.balancer.handle_statistics(peer, message.statistics, counted)
            case ResyncReply():
                lost = self.ledger.handle_resync_reply(peer, message, trio.current_time())
                self.place_waiting()
                self.announce_waiting(lost)
            case UtilityReply():
                self._calls.handle_reply(peer, message)
            case _:
                raise AssertionError(f"the codec let {type(message).__name__} through")

    def deliver_tokens(self, entries: Iterable[LedgerEntry]) -> None:
        """Announce its next token to each request."""
        for entry in entries:
            sink = entry.sink
            if sink is None:
                continue
            try:
                sink.put_token()
            except Exception as error:  # a firewall, as below
                self._end_broken(entry, sink, error)

    def deliver(self, entry: LedgerEntry, output: RequestOutput) -> None:
        """Hand one accepted output to its request."""
        sink = entry.sink
        if sink is None:
            return
        try:
            sink.put(output)
        except Exception as error:  # a firewall: one request's text must not end everybody's
            self._end_broken(entry, sink, error)

    def _end_broken(self, entry: LedgerEntry, sink: RequestSink, error: Exception) -> None:
        self.abort(sink)
        entry.sink = None
        if not isinstance(error, ProcessingFailed):
            error = ProcessingFailed(sink.request_id, f"{type(error).__name__}: {error}")
        sink.fail(error)

    async def call_utility(
        self, peer: Peer, utility: Utility, *, timeout_s: float = UTILITY_TIMEOUT_S
    ) -> str:
        """Ask one engine. Raises `UtilityFailed` when it errs, dies, or takes too long."""
        return await self._calls.call(self.channel, peer, utility, timeout_s)

    # ---- sending

    def _carry_out(self, send: Send | None) -> None:
        if send is not None:
            self._send(send.peer, send.message)

    def _send(self, peer: Peer, message: object) -> None:
        if peer in self._links_waiting:
            return
        try:
            self.channel.send(peer, message)
        except PeerNotConnected:
            pass  # the RESYNC that begins the link's next generation repeats what is wanted
