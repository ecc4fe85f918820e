"""Client of all engines in a frontend: requests out, aborts that cannot be lost, outputs in.

Composes the ledger (what is in flight), the balancer (who gets the next one), membership (who is
there) and one channel to all engines. Everything a caller does is synchronous, so that a cancelled
task cannot leave a request half submitted or half aborted.
"""

import math
from collections.abc import Iterable, Sequence
from typing import assert_never

import attrs
import trio

from ...engine.errors import EngineDied
from ...engine.messages import (
    AddRequest,
    EngineStatistics,
    RequestOutput,
    ResyncReply,
    StatisticsReport,
    StepOutputs,
    Utility,
    UtilityCall,
    UtilityReply,
)
from ...nurseries.tasks.background import always_waits_for
from ...transports.links.channel import (
    Channel,
    ChannelEvent,
    HubEnd,
    Misread,
    Peer,
    PeerDown,
    PeerNotConnected,
    PeerUp,
    Received,
)
from ..errors import NoEngine, ProcessingFailed, UtilityFailed
from ..messages import EngineHealth, EngineMember, EngineMembership, EngineState
from .ledger import Ledger
from .ledger_entry import NOTHING, Accepted, Fail, LedgerEntry, Replay, RequestSink, Send
from .load_balancer import LeastLoaded

# A process that answers at all answers a utility call between two steps.
UTILITY_TIMEOUT_S = 2.0


@attrs.define(eq=False)
class _PendingCall:
    peer: Peer
    answered: trio.Event = attrs.field(factory=trio.Event)
    reply: UtilityReply | None = None


@attrs.define(eq=False)
class CoreClient:
    """All engines, as one frontend sees them."""

    channel: HubEnd
    ledger: Ledger
    balancer: LeastLoaded
    # The latest counts of each engine.
    statistics: dict[Peer, EngineStatistics] = attrs.field(factory=dict, init=False)
    # Set and replaced whenever an engine came, went or was connected.
    engines_changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    membership: EngineMembership = attrs.field(factory=lambda: EngineMembership(-1, []), init=False)
    # The longest request, in tokens, that all engines take which are there or may come back, as far
    # as known: any may have to take over a stream, and its end must not depend on which does.
    max_model_len: float = attrs.field(default=math.inf, init=False)
    draining: bool = attrs.field(default=False, init=False)
    _linked: set[Peer] = attrs.field(factory=set, init=False)
    # Engines whose link has been up, whatever became of it, until they are forgotten.
    _met: set[Peer] = attrs.field(factory=set, init=False)
    _ready: set[Peer] = attrs.field(factory=set, init=False)
    _calls: dict[int, _PendingCall] = attrs.field(factory=dict, init=False)
    # {rank: what its latest READY said}, of those that were not given up.
    _lengths: dict[int, int] = attrs.field(factory=dict, init=False)
    _next_call: int = attrs.field(default=1, init=False)

    # ---- requests

    def submit(self, requests: Sequence[tuple[AddRequest, RequestSink]]) -> None:
        """Write requests down and send them, all to the one engine that has least to do.

        Raises `NoEngine`, `RequestIdInUse`, and what encoding raises; then nothing has happened.
        """
        if self.draining:
            raise NoEngine("this server is draining")
        peer = self._choose()
        added: list[tuple[AddRequest, RequestSink]] = []
        try:
            for request, sink in requests:
                message = self.ledger.handle_add(request, peer, trio.current_time(), sink)
                added.append((message, sink))
            for message, _ in added:
                self._send(peer, message)
        except BaseException:
            # A request that cannot be encoded must not wait here for the next RESYNC.
            for _, sink in added:
                self.abort(sink)
            raise

    def abort(self, sink: RequestSink) -> None:
        """End a request wherever it is; harmless when it has ended. Works in a cancelled task."""
        if self._is_current(sink):
            self._carry_out(self.ledger.handle_abort(sink.request_id, trio.current_time()))

    def stop(self, sink: RequestSink) -> None:
        """The request ended here, by a stop string; its engine gets an abort."""
        if self._is_current(sink):
            self._carry_out(self.ledger.handle_stopped(sink.request_id, trio.current_time()))

    def grant(self, sink: RequestSink, credit: int) -> None:
        """The engine may schedule the request up to this output index."""
        if self._is_current(sink):
            self._carry_out(self.ledger.handle_grant(sink.request_id, credit))

    def _is_current(self, sink: RequestSink) -> bool:
        """Whether it is the request in flight, and not an ended one whose id is used again."""
        entry = self.ledger.get(sink.request_id)
        return entry is not None and entry.sink is sink

    # ---- engines

    def apply_membership(self, membership: EngineMembership) -> None:
        """Numbered full snapshots, the latest wins; an engine that is gone ends its streams."""
        if membership.number <= self.membership.number:
            return
        self.membership = membership
        now_ready = {
            Peer("engine", member.rank, member.epoch)
            for member in membership.engines
            if member.state is EngineState.READY
        }
        self._note_lengths()
        over = {peer for peer in self._met if self._is_over(peer)}
        gone = {peer: self._cause_of(peer) for peer in sorted(over | self._ready - now_ready)}
        self._ready = now_ready
        self._engines_changed()  # first: what is replayed must not go where it came from
        for peer, cause in gone.items():
            self._forget(peer, cause)

    def _note_lengths(self) -> None:
        for member in self.membership.engines:
            if member.ready is not None:
                self._lengths[member.rank] = member.ready.max_model_len
            elif member.state is EngineState.FAILED:
                self._lengths.pop(member.rank, None)
        self.max_model_len = min(self._lengths.values(), default=math.inf)

    def _member_of(self, peer: Peer) -> EngineMember | None:
        return next((each for each in self.membership.engines if each.rank == peer.rank), None)

    def _is_over(self, peer: Peer) -> bool:
        """Whether this epoch of an engine will not be ready any more; it may never have been."""
        member = self._member_of(peer)
        if member is None:
            return False  # a snapshot from before its time, slower than its link
        return member.epoch > peer.epoch or member.state is EngineState.FAILED

    def _cause_of(self, peer: Peer) -> str:
        member = self._member_of(peer)
        return "was removed" if member is None else member.cause or "was replaced"

    def _forget(self, peer: Peer, cause: str) -> None:
        """An engine is gone: drop its link, counts and calls, and decide on its requests."""
        self.channel.forget(peer)
        self._linked.discard(peer)
        self._met.discard(peer)
        self.statistics.pop(peer, None)
        for call in self._calls.values():
            if call.peer == peer:
                call.answered.set()
        for decision in self.ledger.handle_peer_gone(peer, cause, trio.current_time()):
            match decision:
                case Fail(entry=entry, error=error):
                    self._fail(entry, error)
                case Replay(request_id=request_id):
                    self._replay(request_id, EngineDied(str(peer), cause))
                case _:
                    assert_never(decision)

    def _replay(self, request_id: str, error: EngineDied) -> None:
        """Send a request to another engine; without one it fails by the death of the first."""
        now, entry = trio.current_time(), self.ledger.get(request_id)
        try:
            peer = self._choose()
        except NoEngine:
            if entry is not None and self.ledger.handle_give_up(request_id, now):
                self._fail(entry, error)
            return
        message = self.ledger.handle_replay(request_id, peer, now)
        if message is not None:
            self._send(peer, message)

    def _fail(self, entry: LedgerEntry, error: Exception) -> None:
        if entry.sink is not None:
            entry.sink.fail(error)

    def _choose(self) -> Peer:
        """The engine of the next request. Raises `NoEngine`, saying what all of them do."""
        try:
            return self.balancer.choose(self.ledger.in_flight)
        except NoEngine:
            raise NoEngine(self._why_no_engine()) from None

    def _why_no_engine(self) -> str:
        reasons = [health.reason for health in self.health() if health.reason]
        return "; ".join(reasons) or "no engine has started yet"

    def _engines_changed(self) -> None:
        # The channel's own objects: what an engine says is compared by identity first.
        self.balancer.set_engines(sorted(peer for peer in self._linked if peer in self._ready))
        self.engines_changed.set()
        self.engines_changed = trio.Event()

    def health(self) -> list[EngineHealth]:
        """Each engine's state as it is from here: ready also means that the link is up."""
        found = []
        for member in self.membership.engines:
            peer = Peer("engine", member.rank, member.epoch)
            state, reason = member.state, ""
            if state is EngineState.READY and peer not in self._linked:
                state = EngineState.STARTING
            if state is not EngineState.READY:
                reason = f"engine {member.rank} is {state.value}"
                reason += f" after it {member.cause}" if member.cause else ""
            found.append(EngineHealth(member.rank, member.epoch, state, reason))
        return found

    # ---- what engines say

    def handle_event(self, event: ChannelEvent) -> Accepted:
        """Apply one event; returns what is to be delivered, already written down."""
        match event:
            case PeerUp(peer=peer):
                self._send(peer, self.ledger.handle_peer_up(peer))
                self._linked.add(peer)
                self._met.add(peer)
                self._engines_changed()
            case PeerDown(peer=peer):
                self._linked.discard(peer)
                self._engines_changed()
            case Received(peer=peer, message=message):
                return self._handle_message(peer, message)
            case Misread():
                pass  # what an engine did not say is missed by the next output
            case _:
                assert_never(event)
        return NOTHING

    def _handle_message(self, peer: Peer, message: object) -> Accepted:
        match message:
            case StepOutputs():
                accepted = self.ledger.handle_outputs(peer, message, trio.current_time())
                if accepted.out_of_order:
                    self.channel.break_link(peer, "an output is missing or came twice")
                return accepted
            case StatisticsReport():
                if peer in self._met:  # it may have been forgotten while this waited
                    self.statistics[peer] = message.statistics
                    counted = self.ledger.in_flight(peer, up_to=message.last_attempt)
                    self.balancer.handle_statistics(peer, message.statistics, counted)
            case ResyncReply():
                for request in self.ledger.handle_resync_reply(peer, message):
                    self._send(peer, request)
            case UtilityReply(call_id=call_id):
                call = self._calls.get(call_id)
                if call is not None and call.peer == peer:
                    call.reply = message
                    call.answered.set()
            case _:
                raise AssertionError(f"the codec let {type(message).__name__} through")
        return NOTHING

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

    # ---- utility calls

    async def call_utility(
        self, peer: Peer, utility: Utility, *, timeout_s: float = UTILITY_TIMEOUT_S
    ) -> str:
        """Ask one engine. Raises `UtilityFailed` when it errs, dies, or takes too long."""
        call_id, call = self._next_call, _PendingCall(peer)
        self._next_call += 1
        self._calls[call_id] = call
        try:
            self.channel.send(peer, UtilityCall(call_id, utility))
            with trio.move_on_after(timeout_s):
                await call.answered.wait()
        except PeerNotConnected as error:
            raise UtilityFailed(str(peer), str(error)) from error
        finally:
            del self._calls[call_id]
        if call.reply is None:
            why = "it died" if call.answered.is_set() else f"no answer within {timeout_s:g} s"
            raise UtilityFailed(str(peer), why)
        if call.reply.error:
            raise UtilityFailed(str(peer), call.reply.error)
        return call.reply.result

    # ---- sending

    def _carry_out(self, send: Send | None) -> None:
        if send is not None:
            self._send(send.peer, send.message)

    def _send(self, peer: Peer, message: object) -> None:
        try:
            self.channel.send(peer, message)
        except PeerNotConnected:
            pass  # the RESYNC that begins the link's next generation repeats what is wanted


# vLLM's slice: about a millisecond of work between two checkpoints.
SLICE_OUTPUTS = 128


async def run_output_handler(
    client: CoreClient,
    channel: Channel,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Background task `output-handler`: receives outputs and delivers them; never returns.

    One task for all engines and requests: it never waits for a client (collectors do not block),
    and works in slices, so that it does not keep the loop from others.
    Cancellation: between slices; outputs that were written down and not yet delivered are with the
    ledger, and their requests end with the frontend.
    """
    always_waits_for("outputs from engines")
    task_status.started()
    done = 0
    while True:
        for event in await channel.receive():
            accepted = client.handle_event(event)
            for start in range(0, len(accepted.tokens), SLICE_OUTPUTS):
                tokens = accepted.tokens[start : start + SLICE_OUTPUTS]
                client.deliver_tokens(tokens)
                done += len(tokens)
                if done >= SLICE_OUTPUTS:
                    await trio.lowlevel.checkpoint()
                    done = 0
            for entry, output in accepted.outputs:
                client.deliver(entry, output)
                done += 1
                if done >= SLICE_OUTPUTS:
                    await trio.lowlevel.checkpoint()
                    done = 0
