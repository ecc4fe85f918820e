"""Exactly once, whatever is dropped, doubled, delayed or dies; one case after the other."""

import attrs
import pytest

from triolet.engine.messages import (
    AbortRequests,
    AddRequest,
    FinishReason,
    Grant,
    GrantCredit,
    LiveRequest,
    RequestKey,
    RequestOutput,
    Resync,
    ResyncReply,
    StepOutputs,
)
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.errors import RequestIdInUse
from triolet.runtime.frontend.ledger import ATTEMPTS_OF_A_TERM, Ledger
from triolet.runtime.frontend.ledger_entry import LedgerEntry, LedgerStatus, Send
from triolet.runtime.journal.judgement import Refusal
from triolet.runtime.journal.records import Placement
from triolet.transports.links.channel import Peer

ENGINE = Peer("engine", 0, 1)
OTHER = Peer("engine", 1, 1)
SUCCESSOR = Peer("engine", 0, 2)
# What a journal says of the engine that had them.
NUMERICS = Placement("r", 1, None, "numerics")


def request(request_id: str = "r", credit: int | None = None) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        attempt=0,
        prompt_token_ids=[1, 2],
        sampling=SamplingParams(seed=1),
        credit=credit,
    )


def outputs(
    first: int,
    ids: list[int],
    *,
    attempt: int = 1,
    request_id: str = "r",
    finish: FinishReason | None = None,
) -> StepOutputs:
    output = RequestOutput(
        request_id=request_id,
        attempt=attempt,
        first_index=first,
        token_ids=ids,
        finish_reason=finish,
    )
    return StepOutputs(1, [output])


def make(credit: int | None = None) -> Ledger:
    ledger = Ledger()
    ledger.handle_add(request(credit=credit), ENGINE, 0.0)
    return ledger


def entry_of(ledger: Ledger) -> LedgerEntry:
    entry = ledger.get("r")
    assert entry is not None
    return entry


def send_again(ledger: Ledger, name: str = "r", attempt: int = 1) -> AddRequest:
    """The engine does not know it, and gets it again."""
    reply = ResyncReply([RequestKey(name, attempt)])
    (entry,) = ledger.handle_resync_reply(ENGINE, reply, 1.0)
    return ledger.handle_replay(entry, ENGINE, 1.0)


def deliver(ledger: Ledger, peer: Peer, step: StepOutputs, now: float = 1.0) -> list[int]:
    accepted = ledger.handle_outputs(peer, step, now)
    ledger.check_invariants()
    whole = [token_id for _, output in accepted.outputs for token_id in output.token_ids]
    return [entry.token_ids[-1] for entry in accepted.tokens] + whole


def row(index: int, token_id: int, *, attempt: int = 1) -> StepOutputs:
    return StepOutputs(1, [], attempts=[attempt], indices=[index], token_ids=[token_id])


def test_an_added_request_is_known_and_numbered() -> None:
    ledger = Ledger(term=3)
    message = ledger.handle_add(request(), ENGINE, 0.0)
    assert message.attempt == 3 * ATTEMPTS_OF_A_TERM + 1
    assert not message.replayed
    assert (len(ledger), ledger.placed.count(ENGINE), ledger.placed.count(OTHER)) == (1, 1, 0)
    with pytest.raises(RequestIdInUse):
        ledger.handle_add(request(), OTHER, 0.0)
    assert ledger.handle_add(request("s"), OTHER, 0.0).attempt == message.attempt + 1
    ledger.check_invariants()


def test_what_an_earlier_term_sent_goes_on_under_its_attempt() -> None:
    ledger = Ledger(term=3)
    earlier = [2 * ATTEMPTS_OF_A_TERM + number for number in (4, 7)]
    for name, attempt in zip("rs", earlier, strict=True):
        sent = attrs.evolve(request(name, 8), attempt=attempt, output_token_ids=[5, 6])
        ledger.handle_adopted(sent, ENGINE, 0.0, ready=NUMERICS)
    ledger.check_invariants()
    assert ledger.placed.peers() == [ENGINE]
    with pytest.raises(RequestIdInUse):
        ledger.handle_adopted(request(), OTHER, 0.0, ready=NUMERICS)
    assert ledger.handle_peer_up(ENGINE) == Resync(
        [LiveRequest(name, attempt, 2, 8) for name, attempt in zip("rs", earlier, strict=True)]
    )
    assert ledger.placed.count(ENGINE, up_to=earlier[0]) == 1
    assert deliver(ledger, ENGINE, outputs(2, [7], attempt=earlier[0])) == [7]
    assert not any(entry.is_replayed for entry in ledger.entries())
    again = send_again(ledger, "s", earlier[1])
    assert (again.attempt, again.output_token_ids) == (3 * ATTEMPTS_OF_A_TERM + 1, [5, 6])
    assert again.replayed
    ledger.check_invariants()


def test_requests_in_flight_are_counted_up_to_an_attempt() -> None:
    ledger = make()
    for name, peer in (("s", OTHER), ("t", ENGINE), ("u", ENGINE)):
        ledger.handle_add(request(name), peer, 0.0)
    assert ledger.placed.count(ENGINE) == 3
    assert [ledger.placed.count(ENGINE, up_to=attempt) for attempt in range(5)] == [0, 1, 1, 2, 3]
    ledger.handle_abort("t", 1.0)
    assert [ledger.placed.count(ENGINE, up_to=attempt) for attempt in range(5)] == [0, 1, 1, 1, 2]
    assert ledger.placed.count(SUCCESSOR, up_to=9) == 0


def test_tokens_are_written_down_and_an_end_is_the_end() -> None:
    ledger = make()
    assert deliver(ledger, ENGINE, outputs(0, [7])) == [7]
    entry = ledger.get("r")
    assert entry is not None
    assert entry.token_ids == [7]
    assert entry.state.status is LedgerStatus.STREAMING
    assert deliver(ledger, ENGINE, outputs(1, [8, 9], finish=FinishReason.LENGTH)) == [8, 9]
    assert (len(ledger), ledger.placed.count(ENGINE)) == (0, 0)
    assert ledger.ended == {LedgerStatus.FINISHED: 1}
    assert ledger.ended_by_length == 1
    assert deliver(ledger, ENGINE, outputs(3, [1])) == []
    assert ledger.refused == {Refusal.UNKNOWN_REQUEST: 1}


@pytest.mark.parametrize(
    ("peer", "step", "refusal"),
    [
        (ENGINE, outputs(1, [9], request_id="s"), Refusal.UNKNOWN_REQUEST),
        (OTHER, outputs(1, [9]), Refusal.OTHER_ENGINE),
        (SUCCESSOR, outputs(1, [9]), Refusal.OTHER_ENGINE),
        (ENGINE, outputs(1, [9], attempt=2), Refusal.OLD_ATTEMPT),
        (ENGINE, outputs(0, [9]), Refusal.REPEATED),
        (ENGINE, outputs(0, [7, 9]), Refusal.REPEATED),
        (ENGINE, outputs(0, [7], finish=FinishReason.LENGTH), Refusal.REPEATED),
        (ENGINE, outputs(0, [7], finish=FinishReason.ERROR), Refusal.REPEATED),
        (ENGINE, outputs(2, [], finish=FinishReason.ERROR), Refusal.GAP),
        (ENGINE, outputs(2, [9]), Refusal.GAP),
        (ENGINE, outputs(2, [], finish=FinishReason.LENGTH), Refusal.GAP),
        (ENGINE, outputs(2, [9], finish=FinishReason.ABORT), Refusal.GAP),
        (ENGINE, row(1, 9, attempt=2), Refusal.UNKNOWN_REQUEST),
        (OTHER, row(1, 9), Refusal.OTHER_ENGINE),
        (SUCCESSOR, row(1, 9), Refusal.OTHER_ENGINE),
        (ENGINE, row(0, 9), Refusal.REPEATED),
        (ENGINE, row(2, 9), Refusal.GAP),
    ],
)
def test_what_is_not_exactly_next_is_refused(
    peer: Peer, step: StepOutputs, refusal: Refusal
) -> None:
    ledger = make()
    deliver(ledger, ENGINE, outputs(0, [7]))
    assert deliver(ledger, peer, step) == []
    assert ledger.refused == {refusal: 1}
    assert deliver(ledger, ENGINE, outputs(1, [8])) == [8]
    assert deliver(ledger, ENGINE, row(2, 9)) == [9]


def test_rows_are_for_the_attempt_that_lives() -> None:
    ledger = make()
    other = ledger.handle_add(request("s"), ENGINE, 0.0)
    assert other.in_columns
    both = StepOutputs(1, [], attempts=[1, other.attempt], indices=[0, 0], token_ids=[7, 8])
    accepted = ledger.handle_outputs(ENGINE, both, 1.0).tokens
    assert [(each.request.request_id, each.token_ids) for each in accepted] == [
        ("r", [7]),
        ("s", [8]),
    ]
    send_again(ledger)
    ledger.handle_abort("s", 2.0)
    assert deliver(ledger, ENGINE, row(1, 9, attempt=1)) == []
    assert deliver(ledger, ENGINE, row(1, 9, attempt=other.attempt)) == []
    assert ledger.refused == {Refusal.UNKNOWN_REQUEST: 2}
    assert deliver(ledger, ENGINE, row(1, 9, attempt=3)) == [9]
    ledger.handle_peer_gone(ENGINE, "SIGKILL", 3.0)
    assert deliver(ledger, ENGINE, row(2, 9, attempt=3)) == []


@pytest.mark.parametrize(
    ("finish", "end"),
    [
        (FinishReason.ERROR, LedgerStatus.FAILED),
        (FinishReason.ABORT, LedgerStatus.ABORTED),
    ],
)
def test_an_early_end_counts_where_nothing_is_missing(
    finish: FinishReason, end: LedgerStatus
) -> None:
    ledger = make()
    deliver(ledger, ENGINE, outputs(0, [7]))
    assert len(ledger.handle_outputs(ENGINE, outputs(0, [], finish=finish), 1.0).outputs) == 1
    assert ledger.ended == {end: 1}


@pytest.mark.parametrize(
    "step",
    [row(2, 9), row(0, 7), outputs(2, [9]), outputs(0, [7]), outputs(0, [7, 8])],
)
def test_what_is_not_next_breaks_the_link_and_is_asked_for_by_the_next(step: StepOutputs) -> None:
    ledger = make()
    assert not ledger.handle_outputs(ENGINE, row(0, 7), 1.0).out_of_order
    assert ledger.handle_outputs(ENGINE, step, 1.0).out_of_order
    assert not ledger.handle_outputs(OTHER, step, 1.0).out_of_order
    assert ledger.handle_peer_up(ENGINE).live == [LiveRequest("r", 1, 1, None)]
    assert ledger.handle_peer_up(OTHER).live == []
    assert not ledger.handle_outputs(ENGINE, outputs(1, [8, 9]), 1.0).out_of_order


def test_unknown_ones_are_sent_again_as_replays_under_a_new_attempt() -> None:
    ledger = make(credit=10)
    deliver(ledger, ENGINE, outputs(0, [7, 8]))
    reply = ResyncReply([RequestKey("r", 1), RequestKey("gone", 1)])
    (entry,) = ledger.handle_resync_reply(ENGINE, reply, 1.0)
    ledger.check_invariants()
    again = ledger.handle_replay(entry, ENGINE, 1.0)
    assert (again.attempt, again.output_token_ids, again.credit) == (2, [7, 8], 10)
    # A doubled reply, one of another engine and outputs of the old attempt change nothing.
    assert ledger.handle_resync_reply(ENGINE, reply, 1.0) == []
    assert ledger.handle_resync_reply(OTHER, ResyncReply([RequestKey("r", 2)]), 1.0) == []
    assert deliver(ledger, ENGINE, outputs(2, [9], attempt=1)) == []
    assert deliver(ledger, ENGINE, outputs(2, [9], attempt=2)) == [9]
    assert (ledger.sent_again, ledger.migrated) == (1, 0)


def test_a_message_that_was_returned_does_not_change_with_the_ledger() -> None:
    ledger = make()
    again = send_again(ledger)
    deliver(ledger, ENGINE, outputs(0, [7], attempt=2))
    assert again.output_token_ids == []


def test_a_dead_engine_displaces_its_requests_alone() -> None:
    ledger = make()
    ledger.handle_add(request("s"), OTHER, 0.0)
    entry = entry_of(ledger)
    assert ledger.handle_peer_gone(ENGINE, "SIGKILL", 1.0) == [entry]
    assert entry.state.status is LedgerStatus.UNPLACED
    assert ledger.handle_peer_gone(ENGINE, "SIGKILL", 1.0) == []
    assert (len(ledger), ledger.placed.count(OTHER), len(ledger.replays)) == (2, 1, 1)
    assert deliver(ledger, ENGINE, outputs(0, [7])) == []


def test_they_go_on_elsewhere_with_the_tokens_so_far() -> None:
    ledger = make(credit=5)
    deliver(ledger, ENGINE, outputs(0, [7, 8]))
    ledger.handle_peer_gone(ENGINE, "SIGKILL", 1.0)
    ledger.check_invariants()
    assert deliver(ledger, ENGINE, outputs(2, [9])) == []
    assert ledger.handle_grant("r", 9) is None
    again = ledger.handle_replay(entry_of(ledger), OTHER, 2.0)
    assert (again.attempt, again.output_token_ids, again.credit) == (2, [7, 8], 9)
    assert again.replayed
    assert (ledger.sent_again, ledger.migrated, ledger.migrated_inexactly) == (1, 1, 0)
    assert deliver(ledger, OTHER, outputs(2, [9], attempt=2)) == [9]


def test_one_that_is_given_up_failed() -> None:
    ledger = make()
    ledger.handle_peer_gone(ENGINE, "SIGKILL", 1.0)
    ledger.handle_give_up(entry_of(ledger), 2.0)
    assert ledger.ended == {LedgerStatus.FAILED: 1}
    assert len(ledger) == len(ledger.replays) == 0


def test_an_abort_names_the_attempt_and_comes_once() -> None:
    ledger = make()
    send_again(ledger)
    abort = Send(ENGINE, AbortRequests([RequestKey("r", 2)]))
    assert ledger.handle_abort("r", 1.0) == abort
    assert ledger.handle_abort("r", 1.0) is None
    assert ledger.ended == {LedgerStatus.ABORTED: 1}
    assert ledger.handle_peer_up(ENGINE).live == []


def test_an_id_used_again_is_another_request() -> None:
    ledger = make()
    ledger.handle_abort("r", 1.0)
    assert ledger.handle_add(request(), ENGINE, 1.0).attempt == 2
    assert deliver(ledger, ENGINE, outputs(0, [7], attempt=1)) == []
    assert deliver(ledger, ENGINE, outputs(0, [8], attempt=2)) == [8]


def test_an_unplaced_request_is_aborted_without_telling_anyone() -> None:
    ledger = make()
    ledger.handle_peer_gone(ENGINE, "SIGKILL", 1.0)
    assert ledger.handle_abort("r", 2.0) is None
    assert ledger.ended == {LedgerStatus.ABORTED: 1}


def test_a_stop_string_finishes_and_tells_the_engine() -> None:
    ledger = make()
    assert ledger.handle_stopped("r", 1.0) == Send(ENGINE, AbortRequests([RequestKey("r", 1)]))
    assert ledger.ended == {LedgerStatus.FINISHED: 1}
    assert ledger.handle_stopped("r", 1.0) is None


def test_a_stop_string_in_what_was_there_already_finishes_a_request_without_engine() -> None:
    ledger = make()
    deliver(ledger, ENGINE, outputs(0, [7]))
    ledger.handle_peer_gone(ENGINE, "SIGKILL", 1.0)
    assert ledger.handle_stopped("r", 2.0) is None
    assert ledger.ended == {LedgerStatus.FINISHED: 1}


def test_credit_only_grows_and_is_repeated() -> None:
    ledger = make(credit=4)
    assert ledger.handle_grant("r", 4) is None
    assert ledger.handle_grant("r", 6) == Send(ENGINE, GrantCredit([Grant("r", 1, 6)]))
    assert ledger.handle_grant("r", 5) is None
    assert ledger.handle_grant("gone", 5) is None
    assert ledger.handle_peer_up(ENGINE).live == [LiveRequest("r", 1, 0, 6)]
    assert make(credit=None).handle_grant("r", 9) is None


def test_a_request_can_begin_with_tokens() -> None:
    ledger = Ledger()
    begun = AddRequest(
        request_id="r",
        attempt=0,
        prompt_token_ids=[1],
        sampling=SamplingParams(seed=1),
        output_token_ids=[5, 6],
    )
    assert ledger.handle_add(begun, ENGINE, 0.0).output_token_ids == [5, 6]
    assert deliver(ledger, ENGINE, outputs(0, [5])) == []
    assert deliver(ledger, ENGINE, outputs(2, [7])) == [7]
