"""The ledger against engines behind a network that drops, doubles and delays, and that die."""

from collections import Counter

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.engine.messages import (
    AddRequest,
    FinishReason,
    RequestKey,
    RequestOutput,
    Resync,
    ResyncReply,
    StepOutputs,
)
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.ledger import EngineGonePolicy, Fail, Ledger, Refusal, Replay
from triolet.runtime.request_state import RequestStatus
from triolet.transports.channel import Peer

LENGTH = 6  # tokens of each request
RANKS = 2


def token(request_id: str, index: int) -> int:
    """What every engine gives for this index: streams must be the same wherever they are run."""
    return int(request_id) * 1000 + index


@attrs.define(eq=False)
class Engine:
    """Knows requests by (id, attempt) and says their next tokens when asked."""

    said: dict[RequestKey, int] = attrs.field(factory=dict)

    def add(self, message: AddRequest) -> None:
        key = RequestKey(message.request_id, message.attempt)
        assert key not in self.said, "an attempt came twice"
        expected = [token(key.request_id, i) for i in range(len(message.output_token_ids))]
        assert message.output_token_ids == expected
        self.said[key] = len(expected)

    def say(self, key: RequestKey, first: int, count: int) -> StepOutputs:
        end = min(first + count, LENGTH)
        self.said[key] = max(self.said[key], end)
        output = RequestOutput(
            request_id=key.request_id,
            attempt=key.attempt,
            first_index=first,
            token_ids=[token(key.request_id, i) for i in range(first, end)],
            finish_reason=FinishReason.LENGTH if end == LENGTH else None,
        )
        return StepOutputs(1, [output])

    def resync(self, message: Resync) -> tuple[list[StepOutputs], ResyncReply]:
        again = []
        unknown = []
        for live in message.live:
            key = RequestKey(live.request_id, live.attempt)
            if key not in self.said:
                unknown.append(key)
            elif live.next_index < self.said[key]:
                again.append(self.say(key, live.next_index, self.said[key] - live.next_index))
        return again, ResyncReply(unknown)


@attrs.define(eq=False)
class World:
    """One ledger, two engine ranks with successors, and everything under way to the ledger."""

    ledger: Ledger
    engines: dict[Peer, Engine] = attrs.field(factory=dict)
    peers: list[Peer] = attrs.field(factory=list)
    under_way: list[tuple[Peer, StepOutputs | ResyncReply]] = attrs.field(factory=list)
    delivered: dict[str, list[int]] = attrs.field(factory=dict)
    ends: Counter[str] = attrs.field(factory=Counter)
    now: float = 0.0

    def start(self, rank: int, epoch: int) -> None:
        peer = Peer("engine", rank, epoch)
        self.peers[rank : rank + 1] = [peer]
        self.engines[peer] = Engine()

    def add(self, peer: Peer, *, lost: bool) -> None:
        request_id = str(len(self.delivered))
        message = self.ledger.handle_add(
            AddRequest(
                request_id=request_id,
                attempt=0,
                prompt_token_ids=[1],
                sampling=SamplingParams(seed=1),
            ),
            peer,
            self.now,
        )
        self.delivered[request_id] = []
        if not lost:
            self.engines[peer].add(message)

    def deliver(self, place: int, *, keep: bool) -> None:
        peer, message = self.under_way[place]
        if not keep:
            self.under_way.pop(place)
        if isinstance(message, ResyncReply):
            for again in self.ledger.handle_resync_reply(peer, message):
                self.engines[peer].add(again)
            return
        for output in self.ledger.handle_outputs(peer, message, self.now):
            tokens = self.delivered[output.request_id]
            assert output.first_index == len(tokens)
            tokens += output.token_ids
            if output.finish_reason is not None:
                self.ends[output.request_id] += 1

    def link_breaks(self, peer: Peer) -> None:
        """What was under way is lost; the new generation begins with RESYNC."""
        self.under_way = [item for item in self.under_way if item[0] != peer]
        again, reply = self.engines[peer].resync(self.ledger.handle_peer_up(peer))
        self.under_way += [(peer, message) for message in again]
        self.under_way.append((peer, reply))

    def die(self, peer: Peer) -> None:
        """The successor is there at once; the dead one's messages may still come."""
        self.start(peer.rank, peer.epoch + 1)
        for decision in self.ledger.handle_peer_gone(peer, "SIGKILL", self.now):
            match decision:
                case Fail(request_id=request_id):
                    self.ends[request_id] += 1
                case Replay(request_id=request_id):
                    chosen = self.peers[(peer.rank + 1) % RANKS]
                    message = self.ledger.handle_replay(request_id, chosen, self.now)
                    assert message is not None
                    self.engines[chosen].add(message)

    def step(self, data: st.DataObject) -> None:
        self.now += 1
        what = data.draw(st.sampled_from([*EVENTS]))
        peer = self.peers[data.draw(st.integers(0, RANKS - 1))]
        if what == "add" and len(self.delivered) < 5:
            self.add(peer, lost=data.draw(st.booleans()))
        elif what == "say" and self.engines[peer].said:
            key = data.draw(st.sampled_from(list(self.engines[peer].said)))
            first = self.engines[peer].said[key]
            if first < LENGTH:
                count = data.draw(st.integers(1, 3))
                self.under_way.append((peer, self.engines[peer].say(key, first, count)))
        elif what in ("deliver", "double", "drop") and self.under_way:
            place = data.draw(st.integers(0, len(self.under_way) - 1))
            if what == "drop":
                self.under_way.pop(place)
            else:
                self.deliver(place, keep=what == "double")
        elif what == "break":
            self.link_breaks(peer)
        elif what == "die":
            self.die(peer)
        elif what == "abort" and self.delivered:
            request_id = data.draw(st.sampled_from(list(self.delivered)))
            before = self.ledger.ended[RequestStatus.ABORTED]
            self.ledger.handle_abort(request_id, self.now)
            self.ends[request_id] += self.ledger.ended[RequestStatus.ABORTED] - before

    def heal(self) -> None:
        """No faults any more: every link begins anew and every engine says all it has to say."""
        for peer in self.peers:
            self.link_breaks(peer)
        while self.under_way:
            self.deliver(0, keep=False)
        for peer in self.peers:
            for key, said in list(self.engines[peer].said.items()):
                if said < LENGTH:
                    self.under_way.append((peer, self.engines[peer].say(key, said, LENGTH)))
        while self.under_way:
            self.deliver(0, keep=False)


EVENTS = [
    "add",
    "say",
    "say",
    "say",
    "deliver",
    "deliver",
    "double",
    "drop",
    "break",
    "die",
    "abort",
]


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data(), st.sampled_from(EngineGonePolicy))
def test_every_index_comes_once_and_every_request_ends_once(
    data: st.DataObject, policy: EngineGonePolicy
) -> None:
    world = World(Ledger(engine_gone_policy=policy))
    for rank in range(RANKS):
        world.start(rank, 1)
    for _ in range(data.draw(st.integers(0, 40))):
        world.step(data)
        world.ledger.check_invariants()
        assert all(count == 1 for count in world.ends.values() if count)
    world.heal()
    assert len(world.ledger) == 0
    for request_id, tokens in world.delivered.items():
        assert world.ends[request_id] == 1
        assert tokens == [token(request_id, i) for i in range(len(tokens))]
    assert sum(world.ledger.ended.values()) == len(world.delivered)


@pytest.mark.slow
def test_the_network_of_this_test_reaches_every_refusal() -> None:
    """So that the test above is known to try them all."""
    seen = Counter[Refusal]()

    @settings(max_examples=50, derandomize=True, database=None)
    @given(st.data())
    def search(data: st.DataObject) -> None:
        world = World(Ledger(engine_gone_policy=EngineGonePolicy.REPLAY))
        for rank in range(RANKS):
            world.start(rank, 1)
        for _ in range(40):
            world.step(data)
        seen.update(world.ledger.refused)

    search()
    assert set(seen) >= set(Refusal) - {Refusal.OTHER_ENGINE}
