"""Requests whose engines die, under a machine; cases one by one are in `tests/scenarios/ledger`."""

from typing import Any

import attrs
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from triolet.engine.control_messages import EngineReady
from triolet.engine.errors import EngineDraining, EngineError, RequestRecalled
from triolet.engine.messages import (
    AddRequest,
    FinishReason,
    RequestEvent,
    RequestEventKind,
    RequestKey,
    RequestOutput,
    ResyncReply,
    StepOutputs,
)
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.config import ReplaySettings
from triolet.runtime.frontend.ledger import Ledger
from triolet.runtime.frontend.ledger_entry import LedgerEntry, LedgerStatus
from triolet.runtime.frontend.replay_policy import Fail, ReplayPolicy
from triolet.transports.links.channel import Peer

_E = RequestEventKind
READY = EngineReady(
    kv_blocks=8,
    block_tokens=16,
    max_model_len=64,
    max_num_seqs=4,
    vocab_size=100,
    numerics_id="same",
    bitwise=True,
    settings_digest="",
)
UNLIKE = attrs.evolve(READY, numerics_id="other")
SMALL = attrs.evolve(READY, max_model_len=11)


def request(name: str = "r", **fields: Any) -> AddRequest:
    sampling = SamplingParams(seed=1, max_tokens=10)
    values = {"attempt": 0, "prompt_token_ids": [1, 2], "sampling": sampling, **fields}
    return AddRequest(request_id=name, **values)


def say(ledger: Ledger, peer: Peer, attempt: int, index: int) -> None:
    ledger.handle_outputs(peer, StepOutputs(1, [], [attempt], [index], [7]), 50.0)


def answer(add: AddRequest, **fields: Any) -> RequestOutput:
    return RequestOutput(
        request_id=add.request_id,
        attempt=add.attempt,
        first_index=len(add.output_token_ids),
        token_ids=[],
        **fields,
    )


def refuse(
    ledger: Ledger,
    peer: Peer,
    add: AddRequest,
    now: float,
    error: type[EngineError] = EngineDraining,
) -> None:
    output = answer(
        add,
        finish_reason=FinishReason.ERROR,
        error="not begun",
        error_code=error.code,
    )
    (refused,) = ledger.handle_outputs(peer, StepOutputs(1, [output]), now).refused
    assert refused.request.request_id == add.request_id


def entry_of(ledger: Ledger, name: str = "r") -> LedgerEntry:
    entry = ledger.get(name)
    assert entry is not None
    return entry


PEERS = (Peer("engine", 0, 1), Peer("engine", 1, 1))


class ReplayMachine(RuleBasedStateMachine):
    """A ledger whose engines die, drain, forget and come back, against what must hold of each.

    The model is the number of sendings since the last token, and when the engine was lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.count = 0
        self.ledger = Ledger(
            replays=ReplayPolicy(ReplaySettings(replay_wait_s=5, replay_attempts_max=3))
        )
        self.engines = dict.fromkeys(PEERS, READY)
        self.attempts: dict[str, int] = {}
        self.lost_at: dict[str, float] = {}

    def placed(self, which: int) -> LedgerEntry | None:
        names = [name for name in self.attempts if entry_of(self.ledger, name).peer is not None]
        return entry_of(self.ledger, names[which % len(names)]) if names else None

    @rule(peer=st.sampled_from(PEERS), inexact_ok=st.booleans(), is_named=st.booleans())
    def add(self, peer: Peer, inexact_ok: bool, is_named: bool) -> None:
        if peer not in self.engines or self.count == 8:
            return
        self.count += 1
        name = str(self.count)
        self.ledger.handle_add(
            request(
                name,
                admitted_ns=self.count,
                inexact_ok=inexact_ok,
                engine=peer.rank if is_named else None,
            ),
            peer, self.now, ready=self.engines[peer],
        )  # fmt: skip
        self.attempts[name] = 1

    @rule(which=st.integers(0, 7))
    def token(self, which: int) -> None:
        entry = self.placed(which)
        if entry is not None and entry.peer is not None:
            say(self.ledger, entry.peer, entry.attempt, len(entry.token_ids))
            self.attempts[entry.request.request_id] = 1
            self.lost_at.pop(entry.request.request_id, None)

    @rule(which=st.integers(0, 7))
    def queue(self, which: int) -> None:
        entry = self.placed(which)
        if entry is None or entry.peer is None or entry.state.status is LedgerStatus.STREAMING:
            return
        add = attrs.evolve(entry.request, attempt=entry.attempt, output_token_ids=entry.token_ids)
        event = answer(add, events=(RequestEvent(_E.QUEUED, 1),))
        assert self.ledger.handle_outputs(entry.peer, StepOutputs(1, [event]), self.now).queued

    @rule(which=st.integers(0, 7))
    def forget(self, which: int) -> None:
        entry = self.placed(which)
        if entry is None or entry.peer is None:
            return
        name = entry.request.request_id
        reply = ResyncReply([RequestKey(name, entry.attempt)])
        assert self.ledger.handle_resync_reply(entry.peer, reply, self.now) == [entry]
        self.lost_at[name] = self.now

    @rule(which=st.integers(0, 7))
    def drain(self, which: int) -> None:
        entry = self.placed(which)
        if entry is None or entry.peer is None or entry.state.status is LedgerStatus.STREAMING:
            return
        name = entry.request.request_id
        key = attrs.evolve(entry.request, attempt=entry.attempt, output_token_ids=entry.token_ids)
        refuse(self.ledger, entry.peer, key, self.now)
        self.attempts[name] -= 1
        self.lost_at.setdefault(name, self.now)

    @rule(peer=st.sampled_from(PEERS))
    def die(self, peer: Peer) -> None:
        self.engines.pop(peer, None)
        for entry in self.ledger.placed.queued():
            self.attempts[entry.request.request_id] -= entry.peer == peer
        for entry in self.ledger.handle_peer_gone(peer, "SIGKILL", self.now):
            self.lost_at[entry.request.request_id] = self.now

    @rule(peer=st.sampled_from(PEERS), ready=st.sampled_from([READY, UNLIKE, SMALL]))
    def come(self, peer: Peer, ready: EngineReady) -> None:
        self.engines.setdefault(peer, ready)

    @rule(which=st.integers(0, 7))
    def abort(self, which: int) -> None:
        name = str(which)
        self.ledger.handle_abort(name, self.now)
        self.attempts.pop(name, None)
        self.lost_at.pop(name, None)

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.0, 5.0]))
    def decide(self, seconds: float) -> None:
        self.now += seconds
        self.ledger.replays.handle_engines(self.engines, frozenset({"same"}), frozenset({0, 1}))
        for decision in self.ledger.replays.decide(self.now, self.ledger.placed.queued()):
            name = decision.entry.request.request_id
            rank = decision.entry.request.engine
            if (has := decision.entry.peer) is not None:
                assert has.rank != rank, "it was where its client wants it"
                add = decision.entry.message()
                decision.entry.recall()
                refuse(self.ledger, has, add, self.now, RequestRecalled)
                self.attempts[name] -= 1
                self.lost_at.setdefault(name, self.now)
            if isinstance(decision, Fail):
                is_late = self.now >= self.lost_at[name] + 5
                assert is_late or self.attempts[name] == 3, "given up too early"
                self.ledger.handle_give_up(decision.entry, self.now)
                del self.attempts[name], self.lost_at[name]
                continue
            assert self.attempts[name] < 3, "sent too often"
            assert decision.peers
            if rank is not None and self.now < self.lost_at[name] + 5:
                assert {peer.rank for peer in decision.peers} == {rank}, "it had not waited"
            for peer in decision.peers:
                ready = self.engines[peer]
                assert ready is not SMALL, "it does not hold the request"
                is_same = ready.numerics_id == decision.entry.numerics_id
                assert is_same == decision.exact
                assert is_same or decision.entry.request.inexact_ok
            peer, attempt = decision.peers[0], decision.entry.attempt
            ready = self.engines[peer]
            add = self.ledger.handle_replay(decision.entry, peer, self.now, ready=ready)
            assert add.attempt > attempt
            assert add.replayed
            self.attempts[name] += 1
        for entry in map(self.ledger.get, self.attempts):
            assert entry is not None
            if entry.peer is None:
                assert self.attempts[entry.request.request_id] < 3, "it was to be given up"
                assert self.now < self.lost_at[entry.request.request_id] + 5
                assert self.ledger.replays.next_deadline() > self.now

    @invariant()
    def holds(self) -> None:
        self.ledger.check_invariants()
        assert len(self.ledger) == len(self.attempts)
        for name, attempts in self.attempts.items():
            assert entry_of(self.ledger, name).attempts == attempts


TestReplayMachine = ReplayMachine.TestCase
TestReplayMachine.settings = hypothesis_settings(max_examples=60, stateful_step_count=40)
