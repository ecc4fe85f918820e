"""World of the ledger's fuzzer: one ledger, engine ranks with successors, and what is under way.

What the ledger returns is carried out as `core_client` does, and every send, token, refusal and end
is checked against the world's own notes.
"""

from collections import Counter
from typing import Any

import attrs

from ...engine.control_messages import EngineReady
from ...engine.errors import EngineDraining, EngineError, RequestRecalled
from ...engine.messages import (
    AddRequest,
    FinishReason,
    RequestEvent,
    RequestEventKind,
    RequestKey,
    RequestOutput,
    Resync,
    ResyncReply,
    StepOutputs,
)
from ...engine.sampling_params import SamplingParams
from ...runtime.frontend.ledger import Ledger
from ...runtime.frontend.ledger_entry import LedgerStatus
from ...runtime.frontend.replay_policy import Fail
from ...transports.links.channel import Peer

LENGTH = 6  # tokens of each request
RANKS = 2
REQUESTS_MAX = 5
WAIT_S, ATTEMPTS_MAX = 30, 4
SAME, OTHER = "same", "other"  # numerics ids


@attrs.frozen
class Act:
    """Act on whichever engine, message or request `which` comes out at."""

    what: str
    which: int
    count: int


def token(request_id: str, index: int, numerics_id: str) -> int:
    """Token that every engine of one numerics id gives for this index."""
    return int(request_id) * 1000 + index + (500 if numerics_id == OTHER else 0)


def describe(numerics_id: str) -> EngineReady:
    """READY of an engine."""
    return EngineReady(
        kv_blocks=1,
        block_tokens=16,
        max_model_len=16,
        max_num_seqs=1,
        vocab_size=10_000,
        numerics_id=numerics_id,
        bitwise=True,
        settings_digest="",
    )


@attrs.define(eq=False)
class _Engine:
    """Knows requests by (id, attempt) and says their next tokens when asked."""

    ready: EngineReady
    is_draining: bool = False
    said: dict[RequestKey, int] = attrs.field(factory=dict)
    # How many tokens they came with.
    begun: dict[RequestKey, int] = attrs.field(factory=dict)
    refused: dict[RequestKey, StepOutputs] = attrs.field(factory=dict)

    def add(self, message: AddRequest) -> list[StepOutputs]:
        key = RequestKey(message.request_id, message.attempt)
        assert key not in self.said, "an attempt came twice"
        begun = self.begun[key] = len(message.output_token_ids)
        if not self.is_draining:
            self.said[key] = begun
            return []
        return [self.refuse(key, EngineDraining)]

    def refuse(self, key: RequestKey, error: type[EngineError]) -> StepOutputs:
        self.refused[key] = self.answer(
            key, finish_reason=FinishReason.ERROR, error_code=error.code
        )
        return self.refused[key]

    def recall(self, key: RequestKey) -> list[StepOutputs]:
        if key not in self.waiting():
            return []
        del self.said[key]
        return [self.refuse(key, RequestRecalled)]

    def waiting(self) -> list[RequestKey]:
        return [key for key, said in self.said.items() if said == self.begun[key]]

    def say(self, key: RequestKey, first: int, count: int) -> StepOutputs:
        end = min(first + count, LENGTH)
        self.said[key] = max(self.said[key], end)
        if end == first + 1 < LENGTH:
            return StepOutputs(
                1,
                [],
                attempts=[key.attempt],
                indices=[first],
                token_ids=[token(key.request_id, first, self.ready.numerics_id)],
            )
        output = RequestOutput(
            request_id=key.request_id,
            attempt=key.attempt,
            first_index=first,
            token_ids=[token(key.request_id, i, self.ready.numerics_id) for i in range(first, end)],
            finish_reason=FinishReason.LENGTH if end == LENGTH else None,
        )
        return StepOutputs(1, [output])

    def queue(self, key: RequestKey) -> StepOutputs:
        return self.answer(key, events=(RequestEvent(RequestEventKind.QUEUED, 1),))

    def answer(self, key: RequestKey, **fields: Any) -> StepOutputs:
        """An output without tokens, of one that has not begun."""
        output = RequestOutput(
            request_id=key.request_id,
            attempt=key.attempt,
            first_index=self.begun[key],
            token_ids=[],
            **fields,
        )
        return StepOutputs(1, [output])

    def resync(self, message: Resync) -> tuple[list[StepOutputs], ResyncReply]:
        again, unknown = [], []
        for live in message.live:
            key = RequestKey(live.request_id, live.attempt)
            if key in self.refused:
                again.append(self.refused[key])
            elif key not in self.said:
                unknown.append(key)
            elif live.next_index < self.said[key]:
                again.append(self.say(key, live.next_index, self.said[key] - live.next_index))
        return again, ResyncReply(unknown)


@attrs.define(eq=False)
class LedgerWorld:
    """Ledger with two engine ranks and successors, and everything under way to the ledger."""

    ledger: Ledger
    engines: dict[Peer, _Engine] = attrs.field(factory=dict)
    peers: list[Peer] = attrs.field(factory=list)
    under_way: list[tuple[Peer, StepOutputs | ResyncReply]] = attrs.field(factory=list)
    delivered: dict[str, list[int]] = attrs.field(factory=dict)
    ends: Counter[str] = attrs.field(factory=Counter)
    # Whose link has lost something, which its numbers or probes will tell in time.
    lossy: set[Peer] = attrs.field(factory=set)
    # Engines that have refused something since the last membership.
    refusing: set[Peer] = attrs.field(factory=set)
    # Facts of each request: numerics id, sendings since the last token, when it lost its engine.
    began_with: dict[str, str] = attrs.field(factory=dict)
    sent: Counter[str] = attrs.field(factory=Counter)
    lost_at: dict[str, float] = attrs.field(factory=dict)
    now: float = 0.0

    def __attrs_post_init__(self) -> None:
        for rank in range(RANKS):
            self.start(rank, 1, SAME)

    def start(self, rank: int, epoch: int, numerics_id: str) -> None:
        """An engine of this rank joins, in the place of an earlier one."""
        peer = Peer("engine", rank, epoch)
        self.peers[rank : rank + 1] = [peer]
        self.engines[peer] = _Engine(describe(numerics_id))
        self.refusing.clear()

    def apply(self, act: Act) -> None:
        """Apply an act, and check what must hold after it."""
        self.now += 1
        peer = self.peers[act.which % RANKS]
        match act.what:
            case "add" if len(self.delivered) < REQUESTS_MAX and peer not in self.refusing:
                self.add(peer, is_lost=act.count == 1)
            case "say" if self.engines[peer].said:
                said = self.engines[peer].said
                key = list(said)[act.which % len(said)]
                if said[key] < LENGTH:
                    self.under_way.append((peer, self.engines[peer].say(key, said[key], act.count)))
            case "queue" if waiting := self.engines[peer].waiting():
                key = waiting[act.which % len(waiting)]
                self.under_way.append((peer, self.engines[peer].queue(key)))
            case "deliver" | "double" if self.under_way:
                self.deliver(act.which % len(self.under_way), keep=act.what == "double")
            case "drop" if self.under_way:
                self.lossy.add(self.under_way.pop(act.which % len(self.under_way))[0])
            case "break":
                self.break_link(peer)
            case "die":
                self.die(peer, OTHER if act.count == 1 else SAME)
            case "drain":
                self.engines[peer].is_draining = True
            case "wait":
                self.now += 10 * act.count
                self.place()
            case "abort" if self.delivered:
                self.abort(str(act.which % len(self.delivered)))
        self.ledger.check_invariants()
        assert all(count == 1 for count in self.ends.values() if count)

    def add(self, peer: Peer, *, is_lost: bool) -> None:
        """A new request; its ADD may never arrive."""
        request_id = str(len(self.delivered))
        add = AddRequest(
            request_id=request_id,
            attempt=0,
            prompt_token_ids=[1],
            sampling=SamplingParams(seed=1),
        )
        ready = self.engines[peer].ready
        message = self.ledger.handle_add(add, peer, self.now, ready=ready)
        self.delivered[request_id], self.began_with[request_id] = [], ready.numerics_id
        if is_lost:
            self.sent[request_id] += 1
            self.lossy.add(peer)
        else:
            self.send(peer, message)

    def send(self, peer: Peer, message: AddRequest) -> None:
        """An ADD arrives; it brings what the client was offered already."""
        assert message.output_token_ids == self.delivered[message.request_id]
        self.sent[message.request_id] += 1
        assert self.sent[message.request_id] <= ATTEMPTS_MAX, "sent too often"
        self.under_way += [(peer, refusal) for refusal in self.engines[peer].add(message)]

    def place(self) -> None:
        """Place requests as the client does whenever an engine came or time has passed."""
        engines = {
            peer: self.engines[peer].ready for peer in self.peers if peer not in self.refusing
        }
        self.ledger.replays.handle_engines(engines, frozenset({SAME, OTHER}))
        for decision in self.ledger.replays.decide(self.now, self.ledger.placed.queued()):
            request_id = decision.entry.request.request_id
            if isinstance(decision, Fail):
                is_late = self.now >= self.lost_at[request_id] + WAIT_S
                assert is_late or self.sent[request_id] == ATTEMPTS_MAX, "given up too early"
                self.ledger.handle_give_up(decision.entry, self.now)
                self.ends[request_id] += 1
            else:
                peer = decision.peers[int(self.now) % len(decision.peers)]
                ready = self.engines[peer].ready
                if (has := decision.entry.peer) is not None:
                    key = RequestKey(request_id, decision.entry.attempt)
                    decision.entry.recall()
                    self.under_way += [(has, each) for each in self.engines[has].recall(key)]
                    continue
                self.send(
                    peer, self.ledger.handle_replay(decision.entry, peer, self.now, ready=ready)
                )

    def note_token(self, request_id: str) -> None:
        """Note that a request came further."""
        self.sent[request_id] = 1
        self.lost_at.pop(request_id, None)

    def deliver(self, place: int, *, keep: bool) -> None:
        """A message arrives, and perhaps once more later."""
        peer, message = self.under_way[place]
        if not keep:
            self.under_way.pop(place)
        if isinstance(message, ResyncReply):
            for entry in self.ledger.handle_resync_reply(peer, message, self.now):
                self.lost_at[entry.request.request_id] = self.now
            self.place()
            return
        accepted = self.ledger.handle_outputs(peer, message, self.now)
        for entry in accepted.tokens:
            tokens = self.delivered[entry.request.request_id]
            tokens.append(entry.token_ids[len(tokens)])
            self.note_token(entry.request.request_id)
        for _, output in accepted.outputs:
            tokens = self.delivered[output.request_id]
            assert output.first_index == len(tokens), "the next index, and no other"
            tokens += output.token_ids
            if output.token_ids:
                self.note_token(output.request_id)
            if output.finish_reason is not None:
                assert output.finish_reason is FinishReason.LENGTH, "a drain ends no stream"
                self.ends[output.request_id] += 1
        for entry in accepted.refused:
            self.sent[entry.request.request_id] -= 1
            self.lost_at.setdefault(entry.request.request_id, self.now)
        if accepted.refused and self.engines[peer].is_draining:
            self.refusing.add(peer)
        if accepted.refused or accepted.queued:
            self.place()
        if accepted.out_of_order:
            self.break_link(peer)

    def break_link(self, peer: Peer) -> None:
        """Lose what was under way; the new generation begins with RESYNC."""
        self.lossy.discard(peer)
        self.under_way = [item for item in self.under_way if item[0] != peer]
        again, reply = self.engines[peer].resync(self.ledger.handle_peer_up(peer))
        self.under_way += [(peer, message) for message in again]
        self.under_way.append((peer, reply))

    def die(self, peer: Peer, numerics_id: str) -> None:
        """The successor is there at once; the dead one's messages may still come."""
        for entry in self.ledger.placed.queued():
            self.sent[entry.request.request_id] -= entry.peer == peer
        for entry in self.ledger.handle_peer_gone(peer, "SIGKILL", self.now):
            self.lost_at[entry.request.request_id] = self.now
        self.start(peer.rank, peer.epoch + 1, numerics_id)
        self.place()

    def abort(self, request_id: str) -> None:
        """The client leaves."""
        before = self.ledger.ended[LedgerStatus.ABORTED]
        self.ledger.handle_abort(request_id, self.now)
        self.ends[request_id] += self.ledger.ended[LedgerStatus.ABORTED] - before

    def say_all(self) -> bool:
        """Engines say all they have not said; whether anything is under way."""
        for peer in self.peers:
            for key, said in list(self.engines[peer].said.items()):
                if said < LENGTH:
                    self.under_way.append((peer, self.engines[peer].say(key, said, LENGTH)))
        return bool(self.under_way)

    def heal(self) -> None:
        """No faults any more: engines say all they have, and everyone ends.

        Links that have lost something begin anew; what else is amiss the ledger notices. What
        began on an engine that has no like any more is given up in time.
        """
        for engine in self.engines.values():
            engine.is_draining = False
        for peer in self.lossy & set(self.peers):
            self.break_link(peer)
        while self.under_way:
            self.deliver(0, keep=False)
        self.refusing.clear()
        self.place()
        while self.say_all():  # what is called back meanwhile is said by another one
            while self.under_way:
                self.deliver(0, keep=False)
        assert len(self.ledger) == len(self.ledger.replays), "somebody waits for ever"
        self.now += WAIT_S
        assert self.ledger.replays.next_deadline() <= self.now or not len(self.ledger)
        self.place()
        assert len(self.ledger) == 0, "somebody waits for ever"
        for request_id, tokens in self.delivered.items():
            assert self.ends[request_id] == 1
            began_with = self.began_with[request_id]
            assert tokens == [token(request_id, i, began_with) for i in range(len(tokens))]
        assert sum(self.ledger.ended.values()) == len(self.delivered)
