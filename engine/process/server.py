"""Engine server: joins one channel to one engine core, messages to calls and steps to messages.

Shared by the engine process and the in-process engine, so that both behave alike. It holds no
protocol state of its own: requests are the core's, links are the channel's, who speaks for a
frontend's rank and which ranks stay away is `Homes`'. The peer of a link to a frontend bears the
home's term where that of another link has an epoch.
"""

from collections.abc import Awaitable, Callable, Container, Hashable, Mapping
from typing import assert_never

import attrs
import msgspec
import trio

from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.parking import Doorbell
from ...transports.codec import MalformedMessage
from ...transports.links.channel import (
    Channel,
    ChannelEvent,
    Misread,
    Peer,
    PeerDown,
    PeerHeard,
    PeerNotConnected,
    PeerSilent,
    PeerUp,
    Received,
)
from ..core.engine_core import EngineCore
from ..core.homes import Homes
from ..errors import InvalidRequest
from ..messages import (
    AbortRequests,
    AddRequest,
    EngineStatistics,
    GrantCredit,
    RequestKey,
    RequestOutput,
    Resync,
    ResyncReply,
    StatisticsReport,
    StepOutputs,
    TokenLogprobs,
    Utility,
    UtilityCall,
    UtilityReply,
)

# Waiting calls for a task tree, of all frontends together; one more gets an error at once.
TREE_CALLS_MAX = 64
# vLLM's coordinator publishes at this pace; in between, balancers count what they sent themselves.
STATISTICS_PERIOD_S = 0.1
# A process tree is gathered from workers, each of which may be busy in a step.
TREE_TIMEOUT_S = 2.0
# Limit of a part. One request's logprobs may be three times this
# (`sampling_params.LOGPROB_ITEMS_MAX`) and go alone then; a message may have 64 MiB
# (`transports.codec.CodecLimits`).
PART_BYTES_MAX = 16 * 2**20

TreeSource = Callable[[], Awaitable[str]]


@attrs.define(eq=False)
class _Begun:
    """A home whose owner has begun the link that is up with its RESYNC."""

    peer: Peer
    # The last of its attempts that came; the core has taken in or refused it.
    last_attempt: int
    # Sent last, on this link.
    reported: EngineStatistics | None = None


@attrs.define(eq=False)
class EngineServer:
    """Engine as its frontends see it.

    `tree` gathers this engine's process tree as JSON text. `sends_dropped` counts messages for
    homes whose link was down, or up and not yet begun with its RESYNC: their tokens stay in
    the core until that fetches them, so that each is sent once and the next one is exactly next.
    """

    core: EngineCore
    channel: Channel
    tree: TreeSource
    # Hears which suspects a step has computed past their position (`Suspects`).
    on_passed: Callable[[dict[bytes, int]], None] = lambda passed: None
    # Wakes the step loop; rung by others too, whose workers were lost.
    work: Doorbell = attrs.field(factory=Doorbell)
    statistics_period_s: float = STATISTICS_PERIOD_S
    sends_dropped: int = attrs.field(default=0, init=False)
    homes: Homes = attrs.field(init=False)
    # By home, which is what the core knows a frontend by.
    _begun: dict[Hashable, _Begun] = attrs.field(factory=dict, init=False)
    # Set when counts may have changed.
    _counts: Doorbell = attrs.field(factory=Doorbell, init=False)
    _grammar_orders: Doorbell = attrs.field(factory=Doorbell, init=False)
    _homes_changed: Doorbell = attrs.field(factory=Doorbell, init=False)
    # Trees that were asked for: (frontend, call id).
    _tree_send: trio.MemorySendChannel[tuple[Peer, int]] = attrs.field(init=False)
    _tree_receive: trio.MemoryReceiveChannel[tuple[Peer, int]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.homes = Homes(self.core.settings.orphan_s)
        self._tree_send, self._tree_receive = trio.open_memory_channel[tuple[Peer, int]](
            TREE_CALLS_MAX
        )

    # ---- what frontends say

    def handle_event(self, event: ChannelEvent) -> None:
        """Apply one event; synchronous, so a cancelled input handler leaves nothing half-done."""
        match event:
            case PeerUp(peer=peer):
                if not self.homes.handle_owner(peer.rank, peer.epoch, trio.current_time()):
                    self.channel.forget(peer)
                self._homes_changed.ring()
            case PeerDown(peer=peer):
                self._end_link(peer)
                self.homes.handle_down(peer.rank, peer.epoch, trio.current_time())
                self._homes_changed.ring()
            case Received(peer=peer, message=message):
                if self.homes.admits(peer.rank, peer.epoch):
                    self._handle_message(peer, message)
            case PeerSilent() | PeerHeard():
                pass  # a hub alone asks
            case Misread(peer=peer, error=error):
                known = error.known
                if isinstance(known, RequestKey) and self.homes.admits(peer.rank, peer.epoch):
                    self._note_attempt(peer, known.attempt)
                    self.core.refuse(peer.rank, known, _fault_of(error))
                    self.notify()
            case _:
                assert_never(event)

    def _handle_message(self, peer: Peer, message: object) -> None:
        match message:
            case AddRequest(attempt=attempt):
                self._note_attempt(peer, attempt)
                message.admitted_ns = int(trio.current_time() * 1e9) - message.age_ns
                self.core.add(peer.rank, message)
            case AbortRequests(requests=requests, if_queued=True):
                self.core.recall(peer.rank, requests)
                self.deliver(self.core.take_outputs())  # not after the step that computes
            case AbortRequests(requests=requests):
                self.core.abort(peer.rank, requests)
            case GrantCredit(grants=grants):
                self.core.grant(peer.rank, grants)
            case Resync(live=live):
                self.homes.handle_resync(peer.rank)
                # Requests that are unknown here come again, under later attempts.
                last_attempt = max((each.attempt for each in live), default=0)
                self._begun[peer.rank] = _Begun(peer, last_attempt)
                outputs, unknown = self.core.resync(peer.rank, live)
                self.send(peer, ResyncReply(unknown))
                if outputs:
                    self.deliver({peer.rank: StepOutputs(self.core.statistics().step, outputs)})
            case UtilityCall():
                self._handle_utility(peer, message)
            case _:
                raise AssertionError(f"the codec let {type(message).__name__} through")
        self.notify()

    def _note_attempt(self, peer: Peer, attempt: int) -> None:
        begun = self._begun.get(peer.rank)
        if begun is not None:
            begun.last_attempt = max(begun.last_attempt, attempt)

    def _handle_utility(self, peer: Peer, call: UtilityCall) -> None:
        match call.utility:
            case Utility.STATISTICS:  # at once: it must not wait behind a tree
                text = msgspec.json.encode(self.core.statistics()).decode()
                self.send(peer, UtilityReply(call.call_id, result=text))
            case Utility.TASK_TREE:
                try:
                    self._tree_send.send_nowait((peer, call.call_id))
                except trio.WouldBlock:
                    self.send(peer, UtilityReply(call.call_id, error="too many calls wait"))
            case _:
                assert_never(call.utility)

    def handle_listed(self, terms: Mapping[int, int], awaited: Container[int]) -> None:
        """The root's latest list, see `Homes`; who is not in it any more is sent nothing."""
        given_up = self.homes.handle_listed(terms, awaited, trio.current_time())
        for begun in list(self._begun.values()):
            if terms.get(begun.peer.rank) != begun.peer.epoch:
                self._end_link(begun.peer)
        self._give_up(given_up)
        self._homes_changed.ring()

    def _end_link(self, peer: Peer) -> None:
        begun = self._begun.get(peer.rank)
        if begun is not None and begun.peer == peer:
            del self._begun[peer.rank]

    def _give_up(self, homes: list[int]) -> None:
        """Abort all that these have here, keep nothing for them."""
        for home in homes:
            self.core.forget_home(home)
            self.notify()

    # ---- what steps bring

    def notify(self) -> None:
        """Wake the step loop: there may be work, or outputs that no step brought."""
        self.work.ring()
        self._counts.ring()
        if self.core.grammar_orders:
            self._grammar_orders.ring()

    async def wait_work(self) -> None:
        """Wait for a ring at `work`; only the step loop calls this."""
        await self.work.wait()

    async def wait_grammar_orders(self) -> None:
        """Wait until a request waits for its grammar; only the grammar compiler calls this."""
        await self._grammar_orders.wait()

    def deliver(self, outputs: dict[Hashable, StepOutputs]) -> None:
        """Send each home its outputs; one that has not resynced fetches them when it does."""
        self._counts.ring()  # a step may have ended that brings nothing
        for home, message in outputs.items():
            begun = self._begun.get(home)
            if begun is None:
                self.sends_dropped += 1
                continue
            for part in split_outputs(message):
                self.send(begun.peer, part)
        if passed := self.core.suspects.take_passed():
            self.on_passed(passed)

    def report_statistics(self) -> None:
        """Send all counts to each frontend that has begun its link, if they are news to it."""
        statistics = self.core.statistics()
        for begun in self._begun.values():
            if begun.reported != statistics:
                begun.reported = statistics
                self.send(begun.peer, StatisticsReport(statistics, begun.last_attempt))

    def send(self, peer: Peer, message: object) -> None:
        """Queue one message, or drop and count it when the link is down."""
        try:
            self.channel.send(peer, message)
        except PeerNotConnected:
            self.sends_dropped += 1

    # ---- background tasks

    async def run_input(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Background task `input-handler`: applies events until it is cancelled."""
        task_status.started()
        while True:
            with waiting_for("messages from frontends"):
                events = await self.channel.receive()
            for event in events:
                self.handle_event(event)

    async def run_orphan_watch(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Background task `orphan-watch`: gives up homes whose owner stays away."""
        task_status.started()
        while True:
            deadline = self.homes.next_deadline()
            with trio.CancelScope(deadline=deadline), waiting_for("a frontend that stays away"):
                await self._homes_changed.wait()
            self._give_up(self.homes.handle_timeout(trio.current_time()))

    async def run_statistics(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Background task `statistics`: reports counts that changed; sleeps while none does."""
        task_status.started()
        while True:
            with waiting_for("counts that change"):
                await self._counts.wait()
            self.report_statistics()
            await trio.sleep(self.statistics_period_s)

    async def run_utilities(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Background task `utilities`: gathers one process tree after another."""
        task_status.started()
        while True:
            with waiting_for("questions of frontends"):
                peer, call_id = await self._tree_receive.receive()
            reply = UtilityReply(call_id, error="the task tree took too long")
            with trio.move_on_after(TREE_TIMEOUT_S):
                reply = UtilityReply(call_id, result=await self.tree())
            self.send(peer, reply)


def _fault_of(error: MalformedMessage) -> InvalidRequest:
    """Fault of a request that could not be read; its classes may have named it."""
    cause = error.__cause__
    if isinstance(cause, InvalidRequest):
        return cause
    return InvalidRequest(f"the engine cannot read this request: {error.reason}")


def split_outputs(message: StepOutputs) -> list[StepOutputs]:
    """The message, or several that say the same and fit the wire: columns in the first.

    Nearly always there is nothing to cut; but logprobs of a prompt are sent at once, and those of
    several requests may end in the same step.
    """
    sizes = [_size(output) for output in message.outputs]
    if sum(sizes) <= PART_BYTES_MAX:
        return [message]
    parts: list[list[RequestOutput]] = [[]]
    room = PART_BYTES_MAX
    for output, size in zip(message.outputs, sizes, strict=True):
        if size > room and parts[-1]:
            parts.append([])
            room = PART_BYTES_MAX
        parts[-1].append(output)
        room -= size
    first = attrs.evolve(message, outputs=parts[0])
    return [first, *(StepOutputs(message.step, part) for part in parts[1:])]


def _size(output: RequestOutput) -> int:
    """Size of an output's arrays, in bytes; all else takes little."""
    return _array_bytes(output.logprobs) + _array_bytes(output.prompt_logprobs)


def _array_bytes(arrays: TokenLogprobs | None) -> int:
    return 0 if arrays is None else len(arrays.token_ids) + len(arrays.logprobs) + len(arrays.ranks)
