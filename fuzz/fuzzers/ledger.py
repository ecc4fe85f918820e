"""Fuzzes the ledger against engines behind a network that loses, doubles and delays, and that die.

Invariant: every output index is delivered once, in order, and every request ends exactly once.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import attrs

from ...engine.messages import (
    AddRequest,
    FinishReason,
    RequestKey,
    RequestOutput,
    Resync,
    ResyncReply,
    StepOutputs,
)
from ...engine.sampling_params import SamplingParams
from ...runtime.frontend.ledger import Ledger
from ...runtime.frontend.ledger_entry import (
    Accepted,
    EngineGonePolicy,
    Fail,
    LedgerEntry,
    LedgerStatus,
    Refusal,
    Replay,
)
from ...transports.links.channel import Peer
from ..fuzzer import Fuzzer

LENGTH = 6  # tokens of each request
RANKS = 2
REQUESTS_MAX = 5
ACTS = (
    *("add", "say", "say", "say", "deliver", "deliver"),
    *("double", "drop", "break", "die", "abort"),
)
MakeLedger = Callable[[EngineGonePolicy], Ledger]


@attrs.frozen
class Act:
    """What happens, to whichever engine, message or request `which` comes out at."""

    what: str
    which: int
    count: int
    replays: bool


def draw(chance: Random, count: int) -> list[Act]:
    """The policy is one for the whole round; the first act says which."""
    replays = chance.random() < 0.6
    return [
        Act(chance.choice(ACTS), chance.randrange(60), chance.randint(1, 3), replays)
        for _ in range(count)
    ]


def token(request_id: str, index: int) -> int:
    """What every engine gives for this index: streams must be the same wherever they are run."""
    return int(request_id) * 1000 + index


@attrs.define(eq=False)
class _Engine:
    """Knows requests by (id, attempt) and says their next tokens when asked."""

    said: dict[RequestKey, int] = attrs.field(factory=dict)

    def add(self, message: AddRequest) -> None:
        key = RequestKey(message.request_id, message.attempt)
        assert key not in self.said, "an attempt came twice"
        self.said[key] = len(message.output_token_ids)

    def say(self, key: RequestKey, first: int, count: int) -> StepOutputs:
        end = min(first + count, LENGTH)
        self.said[key] = max(self.said[key], end)
        if end == first + 1 < LENGTH:
            return StepOutputs(
                1,
                [],
                attempts=[key.attempt],
                indices=[first],
                token_ids=[token(key.request_id, first)],
            )
        output = RequestOutput(
            request_id=key.request_id,
            attempt=key.attempt,
            first_index=first,
            token_ids=[token(key.request_id, i) for i in range(first, end)],
            finish_reason=FinishReason.LENGTH if end == LENGTH else None,
        )
        return StepOutputs(1, [output])

    def resync(self, message: Resync) -> tuple[list[StepOutputs], ResyncReply]:
        again, unknown = [], []
        for live in message.live:
            key = RequestKey(live.request_id, live.attempt)
            if key not in self.said:
                unknown.append(key)
            elif live.next_index < self.said[key]:
                again.append(self.say(key, live.next_index, self.said[key] - live.next_index))
        return again, ResyncReply(unknown)


@attrs.define(eq=False)
class LedgerWorld:
    """One ledger, two engine ranks with successors, and everything under way to the ledger."""

    ledger: Ledger
    engines: dict[Peer, _Engine] = attrs.field(factory=dict)
    peers: list[Peer] = attrs.field(factory=list)
    under_way: list[tuple[Peer, StepOutputs | ResyncReply]] = attrs.field(factory=list)
    delivered: dict[str, list[int]] = attrs.field(factory=dict)
    ends: Counter[str] = attrs.field(factory=Counter)
    # Whose link has lost something, which its numbers or probes will tell in time.
    lossy: set[Peer] = attrs.field(factory=set)
    now: float = 0.0

    def __attrs_post_init__(self) -> None:
        for rank in range(RANKS):
            self.start(rank, 1)

    def start(self, rank: int, epoch: int) -> None:
        """An engine of this rank joins, in the place of an earlier one."""
        peer = Peer("engine", rank, epoch)
        self.peers[rank : rank + 1] = [peer]
        self.engines[peer] = _Engine()

    def apply(self, act: Act) -> None:
        """One act, and what must hold after it."""
        self.now += 1
        peer = self.peers[act.which % RANKS]
        match act.what:
            case "add" if len(self.delivered) < REQUESTS_MAX:
                self.add(peer, is_lost=act.count == 1)
            case "say" if self.engines[peer].said:
                said = self.engines[peer].said
                key = list(said)[act.which % len(said)]
                if said[key] < LENGTH:
                    self.under_way.append((peer, self.engines[peer].say(key, said[key], act.count)))
            case "deliver" | "double" if self.under_way:
                self.deliver(act.which % len(self.under_way), keep=act.what == "double")
            case "drop" if self.under_way:
                self.lossy.add(self.under_way.pop(act.which % len(self.under_way))[0])
            case "break":
                self.break_link(peer)
            case "die":
                self.die(peer)
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
        message = self.ledger.handle_add(add, peer, self.now)
        self.delivered[request_id] = []
        if is_lost:
            self.lossy.add(peer)
        else:
            self.send(peer, message)

    def send(self, peer: Peer, message: AddRequest) -> None:
        """An ADD arrives; it brings what the client was offered already."""
        assert message.output_token_ids == self.delivered[message.request_id]
        self.engines[peer].add(message)

    def deliver(self, place: int, *, keep: bool) -> None:
        """A message arrives, and perhaps once more later."""
        peer, message = self.under_way[place]
        if not keep:
            self.under_way.pop(place)
        if isinstance(message, ResyncReply):
            for again in self.ledger.handle_resync_reply(peer, message):
                self.send(peer, again)
            return
        accepted = self.ledger.handle_outputs(peer, message, self.now)
        for entry in accepted.tokens:
            tokens = self.delivered[entry.request.request_id]
            tokens.append(entry.token_ids[len(tokens)])
        for _, output in accepted.outputs:
            tokens = self.delivered[output.request_id]
            assert output.first_index == len(tokens), "the next index, and no other"
            tokens += output.token_ids
            if output.finish_reason is not None:
                self.ends[output.request_id] += 1
        if accepted.out_of_order:
            self.break_link(peer)

    def break_link(self, peer: Peer) -> None:
        """What was under way is lost; the new generation begins with RESYNC."""
        self.lossy.discard(peer)
        self.under_way = [item for item in self.under_way if item[0] != peer]
        again, reply = self.engines[peer].resync(self.ledger.handle_peer_up(peer))
        self.under_way += [(peer, message) for message in again]
        self.under_way.append((peer, reply))

    def die(self, peer: Peer) -> None:
        """The successor is there at once; the dead one's messages may still come."""
        self.start(peer.rank, peer.epoch + 1)
        for decision in self.ledger.handle_peer_gone(peer, "SIGKILL", self.now):
            match decision:
                case Fail(entry=entry):
                    self.ends[entry.request.request_id] += 1
                case Replay(request_id=request_id):
                    chosen = self.peers[(peer.rank + 1) % RANKS]
                    message = self.ledger.handle_replay(request_id, chosen, self.now)
                    assert message is not None
                    self.send(chosen, message)

    def abort(self, request_id: str) -> None:
        """The client leaves."""
        before = self.ledger.ended[LedgerStatus.ABORTED]
        self.ledger.handle_abort(request_id, self.now)
        self.ends[request_id] += self.ledger.ended[LedgerStatus.ABORTED] - before

    def heal(self) -> None:
        """No faults any more: engines say all they have, and everyone ends.

        Links that have lost something begin anew; what else is amiss the ledger notices.
        """
        for peer in self.lossy & set(self.peers):
            self.break_link(peer)
        while self.under_way:
            self.deliver(0, keep=False)
        for peer in self.peers:
            for key, said in list(self.engines[peer].said.items()):
                if said < LENGTH:
                    self.under_way.append((peer, self.engines[peer].say(key, said, LENGTH)))
        while self.under_way:
            self.deliver(0, keep=False)
        assert len(self.ledger) == 0, "somebody waits for ever"
        for request_id, tokens in self.delivered.items():
            assert self.ends[request_id] == 1
            assert tokens == [token(request_id, i) for i in range(len(tokens))]
        assert sum(self.ledger.ended.values()) == len(self.delivered)


def check(acts: Sequence[Act], make_ledger: MakeLedger) -> Counter[str]:
    """All of it, then the healing."""
    replays = bool(acts) and acts[0].replays
    policy = EngineGonePolicy.REPLAY if replays else EngineGonePolicy.FAIL
    world = LedgerWorld(make_ledger(policy))
    for act in acts:
        world.apply(act)
    world.heal()
    ledger = world.ledger
    reached = Counter({str(refusal): count for refusal, count in ledger.refused.items()})
    reached.update({status.value: count for status, count in ledger.ended.items()})
    reached["sent again"] = ledger.sent_again
    return reached


class _Credulous(Ledger):
    """Planted: outputs of older attempts count."""

    def _judge(
        self, entry: LedgerEntry | None, peer: Peer, output: RequestOutput
    ) -> Refusal | None:
        refusal = super()._judge(entry, peer, output)
        return None if refusal is Refusal.OLD_ATTEMPT else refusal


class _Stuttering(Ledger):
    """Planted: what comes twice counts twice."""

    def _judge(
        self, entry: LedgerEntry | None, peer: Peer, output: RequestOutput
    ) -> Refusal | None:
        refusal = super()._judge(entry, peer, output)
        return None if refusal is Refusal.REPEATED else refusal


class _Silent(Ledger):
    """Planted: what an engine does not know is not sent again."""

    def handle_resync_reply(self, peer: Peer, reply: ResyncReply) -> list[AddRequest]:
        """Nothing is sent."""
        return []


class _Amnesiac(Ledger):
    """Planted: a replay begins without the tokens that were delivered."""

    def _message(self, entry: LedgerEntry) -> AddRequest:
        return attrs.evolve(super()._message(entry), output_token_ids=[])


class _Repeating(Ledger):
    """Planted: a replay keeps its attempt."""

    def _place(self, entry: LedgerEntry, peer: Peer) -> None:
        attempt = entry.attempt
        super()._place(entry, peer)
        entry.attempt = attempt or entry.attempt


class _Patient(Ledger):
    """Planted: what is missing is refused, and nothing said of it."""

    def handle_outputs(self, peer: Peer, outputs: StepOutputs, now: float) -> Accepted:
        """Never out of order."""
        return attrs.evolve(super().handle_outputs(peer, outputs, now), out_of_order=False)


def _maker(ledger_type: type[Ledger]) -> MakeLedger:
    return lambda policy: ledger_type(engine_gone_policy=policy)


FUZZER = Fuzzer[Act, MakeLedger](
    name="ledger",
    invariant="each index is delivered once and in order, each request ends exactly once",
    draw=draw,
    check=check,
    target=_maker(Ledger),
    faults={
        "outputs of older attempts count": _maker(_Credulous),
        "what comes twice counts twice": _maker(_Stuttering),
        "unknown requests are not sent again": _maker(_Silent),
        "a replay forgets what was delivered": _maker(_Amnesiac),
        "a replay keeps its attempt": _maker(_Repeating),
        "nothing is said of what is missing": _maker(_Patient),
    },
    round_events=60,
    smoke_rounds=300,
    reaches=frozenset(
        {
            *("unknown_request", "old_attempt", "repeated", "gap"),
            *("finished", "failed", "aborted", "sent again"),
        }
    ),
)
