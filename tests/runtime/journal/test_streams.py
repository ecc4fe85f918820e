"""Records to streams: the same tokens as the ledger's, whatever engines say."""

from random import Random

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.engine.errors import EngineDraining
from triolet.engine.messages import FinishReason, RequestOutput, StepOutputs, TokenLogprobs
from triolet.runtime.frontend.ledger import Ledger
from triolet.runtime.journal.envelope import RecordKind
from triolet.runtime.journal.records import (
    ChoiceEnd,
    ClientCredit,
    Deletion,
    EngineLife,
    NamedValue,
    Placement,
    Snapshot,
    decode_payload,
    encode_own,
)
from triolet.runtime.journal.stream import JournalChoice
from triolet.runtime.journal.streams import JournalStreams
from triolet.transports.links.channel import Peer

from .making import ENGINE, admission, output, placement, request, rows

OTHER = Peer("engine", 3, 8)
LOGPROBS = TokenLogprobs(1, b"abcd", b"efgh", b"ijkl")


def choice_of(streams: JournalStreams, request_id: str) -> JournalChoice:
    """One that is there."""
    choice = streams.choice(request_id)
    assert choice is not None
    return choice


def placed(choices: int = 1) -> JournalStreams:
    """One stream, whose choices an engine has as attempts 1, 2, …"""
    streams = JournalStreams()
    streams.handle_own(admission("a", choices=choices), 256, 100)
    for number in range(choices):
        streams.handle_own(placement(f"a#{number}", number + 1), 0, 0)
    return streams


def end(streams: JournalStreams, name: str, said: bytes) -> Snapshot:
    """Its record, which still names engines; and how the stream is written down from then on."""
    record = encode_own(attrs.evolve(streams.streams[name].snapshot(), said=said))
    streams.handle_own(decode_payload(RecordKind.OWN, memoryview(record)), 600, 80)
    return streams.streams[name].snapshot()


@pytest.mark.parametrize("has_engine", [True, False])
def test_an_admission_places_all_its_choices(has_engine: bool) -> None:
    record = admission("a", choices=2)
    for number, each in enumerate(record.requests):
        each.attempt = 8 + number
    if has_engine:
        record.engine, record.numerics_id = EngineLife(ENGINE.rank, ENGINE.epoch), "n"
    record.client_credit = 9
    streams = JournalStreams()
    streams.handle_own(record, 256, 100)
    streams.handle_message(ENGINE, rows((8, 0, 5), (9, 0, 6)))
    choices = streams.streams["a"].choices
    assert [choice.client_credit for choice in choices] == [9, 9]
    assert [choice.token_ids for choice in choices] == ([[5], [6]] if has_engine else [[], []])
    assert [choice.numerics.numerics_id for choice in choices] == ["n" if has_engine else ""] * 2
    streams.check_invariants()


def test_a_deletion_is_of_streams_and_values_and_what_is_not_there() -> None:
    streams = placed()
    streams.handle_own(NamedValue("v", b""), 300, 50)
    streams.handle_own(admission("b"), 400, 50)
    streams.handle_own(Deletion(["a", "unknown", "v"]), 0, 0)
    assert (list(streams.streams), list(streams.values)) == (["b"], [])
    assert streams.passed_over == {"Deletion": 1}
    streams.check_invariants()


def test_rows_and_outputs_that_are_next_count() -> None:
    streams = placed(choices=2)
    streams.handle_message(ENGINE, rows((1, 0, 10), (2, 0, 20), (1, 2, 9), (1, 0, 9), (7, 0, 9)))
    streams.handle_message(ENGINE, StepOutputs(1, [output("a#1", 2, 1, [21, 22])]))
    streams.handle_message(OTHER, rows((1, 1, 9)))
    assert choice_of(streams, "a#0").token_ids == [10]
    assert choice_of(streams, "a#1").token_ids == [20, 21, 22]
    assert streams.passed_over == {"row": 4}
    streams.check_invariants()


def test_an_end_of_the_engine_comes_with_what_it_says() -> None:
    streams = placed()
    last = RequestOutput(
        request_id="a#0",
        attempt=1,
        first_index=0,
        token_ids=[4, 2],
        finish_reason=FinishReason.STOP,
        stop_token_id=2,
        cached_tokens=16,
        logprobs=LOGPROBS,
        prompt_logprobs=LOGPROBS,
        complete=True,
    )
    streams.handle_message(ENGINE, StepOutputs(1, [last]))
    streams.handle_message(ENGINE, rows((1, 2, 9)))
    streams.handle_own(placement("a#0", 5), 0, 0)
    streams.handle_own(ClientCredit("a#0", 5), 0, 0)
    choice = choice_of(streams, "a#0")
    assert (choice.token_ids, choice.cached_tokens) == ([4, 2], 16)
    assert (choice.logprobs.parts(), choice.prompt_logprobs) == ([(1, LOGPROBS)], LOGPROBS)
    assert choice.engine_end is not None
    assert (choice.engine_end.stop_token_id, choice.engine_end.complete) == (2, True)
    assert (choice.attempt, choice.client_credit, choice.peer) == (1, 0, None)
    streams.check_invariants()


def test_cached_tokens_are_those_of_the_first_engine() -> None:
    streams = placed()
    first = output("a#0", 1, 0, [1])
    first.cached_tokens = 3
    streams.handle_message(ENGINE, StepOutputs(1, [first]))
    streams.handle_own(placement("a#0", 2, OTHER), 0, 0)
    second = output("a#0", 2, 1, [1])
    second.cached_tokens = 96
    streams.handle_message(OTHER, StepOutputs(1, [second]))
    assert choice_of(streams, "a#0").cached_tokens == 3


def test_what_the_frontend_says_of_a_stream() -> None:
    streams = placed(choices=2)
    streams.handle_own(ClientCredit("a#0", 50), 0, 0)
    streams.handle_own(ClientCredit("a#0", 40), 0, 0)
    end = ChoiceEnd(request_id="a#1", finish_reason=FinishReason.STOP)
    streams.handle_own(end, 0, 0)
    streams.handle_message(ENGINE, rows((2, 0, 9)))
    stream = streams.streams["a"]
    assert stream.said is None
    assert [choice.client_credit for choice in stream.choices] == [50, 0]
    assert [choice.end for choice in stream.choices] == [None, end]
    assert choice_of(streams, "a#1").token_ids == []
    streams.handle_own(Deletion(["a"]), 0, 0)
    assert streams.streams == {}
    streams.check_invariants()


def test_nothing_counts_after_the_end_of_a_stream() -> None:
    streams = placed(choices=2)
    streams.handle_message(ENGINE, rows((1, 0, 10), (2, 0, 20)))
    after = end(streams, "a", b"completed")
    streams.handle_message(ENGINE, rows((1, 1, 11)))
    streams.handle_message(ENGINE, StepOutputs(1, [output("a#1", 2, 1, [21])]))
    for record in (
        placement("a#0", 5),
        ClientCredit("a#0", 9),
        ChoiceEnd(request_id="a#1", finish_reason=FinishReason.STOP),
    ):
        streams.handle_own(record, 0, 0)
    assert streams.passed_over == {"row": 1, "output": 1, "late": 3}
    assert streams.streams["a"].snapshot() == after
    assert after.said == b"completed"
    assert all(choice.is_over for choice in streams.streams["a"].choices)
    assert [choice.token_ids for choice in after.choices] == [[10], [20]]
    streams.check_invariants()
    streams.handle_own(Deletion(["a"]), 0, 0)
    assert streams.streams == {}


def test_a_snapshot_of_a_stream_that_ended_says_so() -> None:
    before = placed()
    end(before, "a", b"")
    after = JournalStreams()
    after.handle_own(before.streams["a"].snapshot(), 600, 80)
    assert after.streams["a"].said == b""
    after.handle_own(placement("a#0", 5), 0, 0)
    assert after.passed_over == {"late": 1}
    after.check_invariants()


def test_a_choice_without_engine_takes_nothing() -> None:
    streams = placed()
    streams.handle_own(placement("a#0", 1, None), 0, 0)
    streams.handle_message(ENGINE, rows((1, 0, 9)))
    streams.handle_message(ENGINE, StepOutputs(1, [output("a#0", 1, 0, [9])]))
    assert choice_of(streams, "a#0").token_ids == []
    streams.check_invariants()


def test_tokens_are_inexact_from_the_first_engine_with_other_numerics() -> None:
    streams = placed()
    streams.handle_message(ENGINE, rows((1, 0, 10)))
    streams.handle_own(placement("a#0", 2, OTHER), 0, 0)
    streams.handle_message(OTHER, rows((2, 1, 11)))
    streams.handle_own(placement("a#0", 3, None), 0, 0)
    assert choice_of(streams, "a#0").numerics.inexact_from is None
    choice = choice_of(streams, "a#0")
    for attempt, numerics_id in ((4, "m"), (5, "n"), (6, "m")):
        record = Placement("a#0", attempt, EngineLife(3, 7), numerics_id, False)
        streams.handle_own(record, 0, 0)
        assert (choice.numerics.numerics_id, choice.numerics.bitwise) == (numerics_id, False)
        assert choice.numerics.inexact_from == 2
        streams.handle_message(ENGINE, rows((attempt, len(choice.token_ids), 1)))
    streams.handle_own(streams.streams["a"].snapshot(), 600, 80)
    assert choice_of(streams, "a#0").numerics.inexact_from == 2
    streams.check_invariants()


def test_a_refusal_for_draining_is_no_end() -> None:
    streams = placed()
    refusal = output("a#0", 1, 0, [], FinishReason.ERROR)
    refusal.error_code = EngineDraining.code
    streams.handle_message(ENGINE, StepOutputs(1, [refusal]))
    choice = choice_of(streams, "a#0")
    assert not choice.is_over
    assert choice.peer is None
    streams.check_invariants()


def test_what_is_admitted_twice_counts_once() -> None:
    streams = placed()
    streams.handle_own(admission("a", choices=2), 300, 1)
    twice = admission("b", choices=2)
    twice.requests[1].request_id = "b#0"
    streams.handle_own(twice, 400, 1)
    assert list(streams.streams) == ["a"]
    assert streams.passed_over == {"admission twice": 2}
    streams.check_invariants()


def test_an_attempt_that_two_choices_claim_is_the_later_ones() -> None:
    streams = placed(choices=2)
    streams.handle_own(placement("a#1", 1), 0, 0)
    streams.handle_message(ENGINE, rows((1, 0, 5)))
    assert choice_of(streams, "a#0").token_ids == []
    assert choice_of(streams, "a#1").token_ids == [5]
    streams.check_invariants()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_snapshot_says_all_whether_what_came_before_is_there_or_not(is_there: bool) -> None:
    before = placed(choices=3)
    before.handle_message(ENGINE, rows((1, 0, 10), (2, 0, 2**31)))
    before.handle_message(ENGINE, StepOutputs(1, [output("a#1", 2, 1, [5], FinishReason.LENGTH)]))
    before.handle_own(ChoiceEnd(request_id="a#2", finish_reason=FinishReason.ABORT), 0, 0)
    snapshot = before.streams["a"].snapshot()
    after = before if is_there else JournalStreams()
    after.handle_own(admission("b"), 500, 50)
    after.handle_own(snapshot, 600, 80)
    assert after.streams["a"].snapshot() == snapshot
    assert [stream.base for stream in after.streams.values()] == [500, 600]
    after.check_invariants()
    after.handle_message(ENGINE, rows((1, 1, 11), (2, 2, 9), (3, 0, 9)))
    tokens = [choice.token_ids for choice in after.streams["a"].choices]
    assert tokens == [[10, 11], [2**31, 5], []]


def drawn_outputs(chance: Random, ledger: Ledger, ids: list[str]) -> StepOutputs:
    """Of requests in flight and others: next, repeated, far, of other attempts."""
    outputs, columns = [], []
    for request_id in chance.sample(ids, chance.randint(1, len(ids))):
        entry = ledger.get(request_id)
        here = chance.randrange(4) if entry is None else len(entry.token_ids)
        attempt = chance.randrange(9) if entry is None else entry.attempt
        first = max(0, here + chance.choice([0, 0, 0, 0, -1, 1]))
        attempt += chance.choice([0, 0, 0, 0, -1])
        if chance.random() < 0.5:
            columns.append((attempt, first, chance.randrange(99)))
            continue
        ends = [None, None, None, FinishReason.LENGTH, FinishReason.ERROR, FinishReason.ABORT]
        tokens = [7] * chance.randint(0, 2)
        outputs.append(output(request_id, attempt, first, tokens, chance.choice(ends)))
        if outputs[-1].finish_reason is FinishReason.ERROR and chance.random() < 0.5:
            outputs[-1].error_code = EngineDraining.code
    return StepOutputs(1, outputs, *map(list, zip(*columns, strict=True)))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_it_takes_what_a_ledger_takes(seed: int) -> None:
    """Both are given the same messages, whatever they are; the ledger's is what was offered."""
    chance = Random(seed)
    ledger, streams = Ledger(), JournalStreams()
    ids = ["a#0", "b#0", "c#0"]
    for number, name in enumerate("abc"):
        streams.handle_own(admission(name), number, 1)
        peer = chance.choice([ENGINE, OTHER])
        sent = ledger.handle_add(request(f"{name}#0"), peer, 0.0)
        streams.handle_own(placement(f"{name}#0", sent.attempt, peer), 0, 0)
    for _ in range(20):
        peer = chance.choice([ENGINE, OTHER])
        message = drawn_outputs(chance, ledger, ids)
        ledger.handle_outputs(peer, message, 1.0)
        streams.handle_message(peer, message)
        for request_id in ids:
            entry, choice = ledger.get(request_id), choice_of(streams, request_id)
            assert (entry is None) == choice.is_over
            if entry is not None:
                assert (entry.token_ids, entry.peer) == (choice.token_ids, choice.peer)
                if entry.peer is None and chance.random() < 0.5:
                    sent = ledger.handle_replay(entry, peer, 1.0)
                    streams.handle_own(placement(request_id, sent.attempt, peer), 0, 0)
        streams.check_invariants()
