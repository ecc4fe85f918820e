"""Where a request goes on, how long it waits and why it does not; and all of it under a machine."""

from typing import Any

import attrs
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from triolet.engine.errors import EngineDied, EngineDraining, EngineError, RequestRecalled
from triolet.engine.messages import (
    AbortRequests,
    AddRequest,
    EngineReady,
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
from triolet.runtime.frontend.ledger_entry import Fail, LedgerEntry, LedgerStatus, Send
from triolet.runtime.frontend.replay_policy import PlaceOn, ReplayDecision, ReplayPolicy
from triolet.transports.links.channel import Peer

_E = RequestEventKind
GONE = Peer("engine", 0, 1)
SUCCESSOR = Peer("engine", 0, 2)
OTHER = Peer("engine", 1, 1)
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
ROUGH = attrs.evolve(READY, bitwise=False)


def request(name: str = "r", **fields: Any) -> AddRequest:
    sampling = SamplingParams(seed=1, max_tokens=10)
    values = {"attempt": 0, "prompt_token_ids": [1, 2], "sampling": sampling, **fields}
    return AddRequest(request_id=name, **values)


def make(
    *, tokens: int = 1, wait_s: float = 30, attempts: int = 16, ready: EngineReady = READY,
    **fields: Any,
) -> Ledger:  # fmt: skip
    """One request that has lost its engine at 100 s."""
    settings = ReplaySettings(replay_wait_s=wait_s, replay_attempts_max=attempts)
    ledger = Ledger(replays=ReplayPolicy(settings))
    add = ledger.handle_add(request(**fields), GONE, 0.0, ready=ready)
    for index in range(tokens):
        say(ledger, GONE, add.attempt, index)
    ledger.handle_peer_gone(GONE, "SIGKILL", 100.0)
    return ledger


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


def decide(
    ledger: Ledger,
    engines: dict[Peer, EngineReady],
    now: float = 100.0,
    *expected: str,
    ranks: tuple[int, ...] = (0, 1),
) -> list[ReplayDecision]:
    ledger.check_invariants()
    ledger.replays.handle_engines(engines, frozenset(expected), frozenset(ranks))
    return ledger.replays.decide(now)


def end_of(
    ledger: Ledger, now: float, engines: dict[Peer, EngineReady] | None = None
) -> EngineError:
    (decision,) = decide(ledger, engines or {}, now, "same")
    assert isinstance(decision, Fail)
    ledger.handle_give_up(decision.entry, now)
    ledger.check_invariants()
    assert len(ledger) == len(ledger.replays) == 0
    assert isinstance(decision.error, EngineError)
    return decision.error


@pytest.mark.parametrize(
    ("engines", "chosen"),
    [
        ({SUCCESSOR: READY}, [SUCCESSOR]),
        ({SUCCESSOR: READY, OTHER: UNLIKE}, [SUCCESSOR]),
        ({SUCCESSOR: READY, OTHER: READY}, [SUCCESSOR, OTHER]),
        ({OTHER: UNLIKE}, None),
        ({OTHER: SMALL}, None),
        ({OTHER: attrs.evolve(SMALL, max_model_len=12)}, [OTHER]),
        ({}, None),
    ],
)
@pytest.mark.parametrize("tokens", [0, 3])
def test_it_goes_to_an_engine_of_the_same_numerics_that_holds_it(
    engines: dict[Peer, EngineReady], chosen: list[Peer] | None, tokens: int
) -> None:
    ledger = make(tokens=tokens)
    decisions = decide(ledger, engines)
    assert decisions == ([] if chosen is None else [PlaceOn(entry_of(ledger), chosen, True)])
    assert ledger.replays.next_deadline() == 130.0


def test_it_waits_so_long_and_then_ends_with_the_death_of_its_engine() -> None:
    ledger = make()
    assert decide(ledger, {OTHER: UNLIKE}, 129.9, "same") == []
    error = end_of(ledger, 130.0, {OTHER: UNLIKE})
    assert isinstance(error, EngineDied)
    assert error.retryable
    assert str(error) == (
        "engine 0 (epoch 1) died: SIGKILL, and no engine that could go on with it exactly came up"
        " within 30 s. The request may be sent again"
    )
    assert ledger.replays.next_deadline() == float("inf")


def test_without_a_wait_it_goes_on_at_once_or_not_at_all() -> None:
    assert isinstance(decide(make(wait_s=0), {OTHER: READY})[0], PlaceOn)
    assert "no engine came up within 0 s" in str(end_of(make(wait_s=0), 100.0))


def test_one_attempt_is_the_policy_that_fails() -> None:
    for tokens in (0, 2):
        ledger = make(tokens=tokens, wait_s=0, attempts=1)
        assert "was sent 1 times without" in str(end_of(ledger, 100.0, {OTHER: READY}))


def test_inexact_only_where_it_is_allowed_and_no_engine_of_its_own_may_return() -> None:
    engines = {OTHER: UNLIKE}
    ledger = make(inexact_ok=True)
    assert decide(ledger, engines, 100.0, "same", "other") == [], "its own may come back"
    assert decide(ledger, engines | {SUCCESSOR: READY}) == [
        PlaceOn(entry_of(ledger), [SUCCESSOR], True)
    ]
    expected = [PlaceOn(entry_of(ledger), [OTHER], False)]
    assert decide(ledger, engines, 100.0, "other") == expected
    assert decide(ledger, engines, 130.0, "same", "other") == expected
    again = ledger.handle_replay(entry_of(ledger), OTHER, 130.0, ready=UNLIKE, exact=False)
    assert again.replayed
    assert (ledger.migrated, ledger.migrated_inexactly) == (1, 1)
    # From now on it is the other's.
    ledger.handle_peer_gone(OTHER, "SIGKILL", 140.0)
    assert decide(ledger, {SUCCESSOR: READY}, 140.0, "same", "other") == []
    assert decide(ledger, {OTHER: UNLIKE}, 140.0) == [PlaceOn(entry_of(ledger), [OTHER], True)]


def test_it_waits_for_the_next_life_of_the_rank_that_its_client_named() -> None:
    ledger = make(engine=0)
    (entry,) = ledger.entries()
    assert decide(ledger, {OTHER: READY}, 129.9, "same") == []
    assert decide(ledger, {OTHER: READY, SUCCESSOR: UNLIKE}, 129.9, "same") == []
    there = [PlaceOn(entry, [SUCCESSOR], True)]
    assert decide(ledger, {OTHER: READY, SUCCESSOR: READY}, 100.0, "same") == there
    assert decide(ledger, {OTHER: READY, SUCCESSOR: READY}, 130.0, "same") == there
    elsewhere = [PlaceOn(entry, [OTHER], True)]
    assert decide(ledger, {OTHER: READY}, 130.0, "same") == elsewhere, "in time it did not come"
    assert decide(ledger, {OTHER: READY, SUCCESSOR: UNLIKE}, 130.0, "same") == elsewhere
    assert decide(ledger, {OTHER: READY}, 100.0, "same", ranks=(1,)) == elsewhere, "none will come"
    ledger.handle_replay(entry, OTHER, 130.0, ready=READY)
    assert not entry.is_at_home
    ledger.handle_peer_gone(OTHER, "SIGKILL", 140.0)
    assert decide(ledger, {Peer("engine", 1, 2): READY}, 150.0, "same") == [], "it waits anew"
    assert decide(ledger, {SUCCESSOR: READY}, 150.0, "same") == there
    assert isinstance(end_of(ledger, 170.0), EngineDied)


def test_with_other_tokens_it_goes_on_there_and_elsewhere_when_it_has_waited() -> None:
    ledger = make(engine=0, inexact_ok=True)
    (entry,) = ledger.entries()
    engines = {OTHER: UNLIKE, SUCCESSOR: UNLIKE}
    assert decide(ledger, {OTHER: UNLIKE}, 100.0, "other") == []
    assert decide(ledger, engines, 100.0, "other") == [PlaceOn(entry, [SUCCESSOR], False)]
    assert decide(ledger, {OTHER: UNLIKE}, 130.0, "other") == [PlaceOn(entry, [OTHER], False)]


def test_what_is_queued_where_its_client_wants_it_stays_and_comes_home_from_elsewhere() -> None:
    ledger = make(engine=0)
    (entry,) = ledger.entries()
    ledger.handle_replay(entry, SUCCESSOR, 101.0, ready=READY)
    ledger.replays.handle_engines({OTHER: READY, SUCCESSOR: READY}, ranks=frozenset({0, 1}))
    assert ledger.replays.decide(101.0, [entry]) == []
    ledger.replays.handle_engines({OTHER: READY}, ranks=frozenset({0, 1}))
    assert ledger.replays.decide(101.0, [entry]) == [], "its link is down, and may come back"
    ledger.handle_peer_gone(SUCCESSOR, "SIGKILL", 102.0)
    ledger.handle_replay(entry, OTHER, 132.0, ready=READY)
    third = Peer("engine", 0, 3)
    ledger.replays.handle_engines({OTHER: READY, third: READY}, ranks=frozenset({0, 1}))
    assert ledger.replays.decide(133.0, [entry]) == [PlaceOn(entry, [third], True)]


def test_what_an_approximate_engine_gave_is_not_gone_on_with() -> None:
    assert "`inexact_ok`" in str(end_of(make(ready=ROUGH), 100.0, {OTHER: ROUGH}))
    begun = make(ready=ROUGH, inexact_ok=True)
    assert decide(begun, {OTHER: ROUGH}, 100.0, "same") == [
        PlaceOn(entry_of(begun), [OTHER], False)
    ]
    fresh = make(ready=ROUGH, tokens=0)
    assert decide(fresh, {OTHER: ROUGH}) == [PlaceOn(entry_of(fresh), [OTHER], True)]


def test_attempts_are_bounded_until_the_next_token() -> None:
    ledger = make(attempts=3)
    for now in (101.0, 102.0):
        (place,) = decide(ledger, {OTHER: READY}, now)
        assert isinstance(place, PlaceOn)
        ledger.handle_replay(place.entry, OTHER, now, ready=READY)
        ledger.handle_peer_gone(OTHER, "SIGSEGV", now)
    assert ledger.replays.next_deadline() == 102.0
    error = end_of(ledger, 102.0, {OTHER: READY})
    assert "SIGSEGV, and the request was sent 3 times without a new token" in str(error)

    ledger = make(attempts=3)
    for now in range(101, 120):
        add = ledger.handle_replay(entry_of(ledger), OTHER, now, ready=READY)
        say(ledger, OTHER, add.attempt, len(add.output_token_ids))
        ledger.handle_peer_gone(OTHER, "SIGSEGV", now)
    assert isinstance(decide(ledger, {OTHER: READY}, 120.0)[0], PlaceOn)


@pytest.mark.parametrize(("last", "counts"), [(_E.QUEUED, False), (_E.SCHEDULED, True)])
def test_engines_that_die_while_it_waits_for_its_turn_are_no_attempts(
    last: RequestEventKind, counts: bool
) -> None:
    ledger = make(attempts=3)
    for now in range(101, 120):
        decision = decide(ledger, {OTHER: READY}, now)[0]
        if isinstance(decision, Fail):
            break
        add = ledger.handle_replay(decision.entry, OTHER, now, ready=READY)
        assert add.events
        for kind in (_E.QUEUED, last):
            event = answer(add, events=(RequestEvent(kind, 3),))
            # The ledger has asked for it, and not the client.
            assert ledger.handle_outputs(OTHER, StepOutputs(1, [event]), now).outputs == []
        ledger.handle_peer_gone(OTHER, "SIGKILL", now)
        ledger.check_invariants()
    assert isinstance(decision, Fail) == counts


def test_what_is_queued_may_go_where_it_goes_on_exactly_and_that_is_no_attempt() -> None:
    ledger = make(attempts=2)
    entry = entry_of(ledger)
    for now in range(101, 120):
        add = ledger.handle_replay(entry, OTHER, now, ready=READY)
        event = answer(add, events=(RequestEvent(_E.QUEUED, 3),))
        assert ledger.handle_outputs(OTHER, StepOutputs(1, [event]), now).queued
        assert ledger.placed.queued() == [entry]
        ledger.replays.handle_engines({OTHER: UNLIKE, SUCCESSOR: READY})
        (decision,) = ledger.replays.decide(now, ledger.placed.queued())
        assert decision == PlaceOn(entry, [SUCCESSOR], True)
        recall = AbortRequests([RequestKey("r", add.attempt)], if_queued=True)
        assert entry.recall() == Send(OTHER, recall)
        assert ledger.placed.queued() == [], "it is asked once"
        refuse(ledger, OTHER, add, now, RequestRecalled)
    ledger.handle_replay(entry, SUCCESSOR, now, ready=READY)
    ledger.check_invariants()
    assert ledger.placed.queued() == []
    say(ledger, OTHER, add.attempt, 1)
    assert len(entry.token_ids) == 1, "the attempt that was recalled counts for nothing"


def test_what_is_queued_stays_where_no_other_engine_would_go_on_with_it() -> None:
    ledger = make(wait_s=1)
    entry = entry_of(ledger)
    ledger.handle_replay(entry, OTHER, 101.0, ready=READY)
    for engines in ({}, {SUCCESSOR: UNLIKE}, {SUCCESSOR: SMALL}):
        ledger.replays.handle_engines(engines)
        assert ledger.replays.decide(200.0, [entry]) == []


def test_an_engine_that_forgets_it_again_and_again_is_an_attempt_each_time() -> None:
    ledger = make(attempts=3)
    for now in (101.0, 102.0):
        assert isinstance(decide(ledger, {OTHER: READY}, now)[0], PlaceOn)
        add = ledger.handle_replay(entry_of(ledger), OTHER, now, ready=READY)
        ledger.handle_resync_reply(OTHER, ResyncReply([RequestKey("r", add.attempt)]), now)
    assert "was sent 3 times" in str(end_of(ledger, 103.0, {OTHER: READY}))


def test_refusals_for_draining_are_free_and_end_no_wait() -> None:
    ledger = make(attempts=2)
    for now in range(101, 120):
        add = ledger.handle_replay(entry_of(ledger), OTHER, now, ready=READY)
        refuse(ledger, OTHER, add, now)
        assert ledger.replays.next_deadline() == 130.0
    assert isinstance(decide(ledger, {OTHER: READY}, 120.0)[0], PlaceOn)
    assert "died: SIGKILL" in str(end_of(ledger, 130.0))


def test_a_new_request_that_is_refused_for_draining_waits_as_well() -> None:
    ledger = Ledger()
    add = ledger.handle_add(request(), GONE, 0.0, ready=READY)
    refuse(ledger, GONE, add, 5.0)
    assert ledger.get("r") is not None
    assert isinstance(decide(ledger, {OTHER: READY}, 6.0)[0], PlaceOn)
    assert isinstance(end_of(ledger, 35.0), EngineDraining)


def test_those_that_wait_have_their_turns_by_priority_and_admission() -> None:
    ledger = Ledger()
    for name, priority, admitted in (("a", 0, 3), ("b", 1, 1), ("c", 0, 2), ("d", -1, 4)):
        add = request(name, priority=priority, admitted_ns=admitted)
        ledger.handle_add(add, GONE, 0.0, ready=READY)
    ledger.handle_peer_gone(GONE, "SIGKILL", 1.0)
    order = [each.entry.request.request_id for each in decide(ledger, {OTHER: READY})]
    assert order == ["d", "c", "a", "b"]
    assert [ledger.replays.position(entry_of(ledger, name)) for name in "dcab"] == [0, 1, 2, 3]


PEERS = (GONE, OTHER)


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
