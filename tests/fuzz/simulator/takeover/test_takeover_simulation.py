"""Takeover, simulated: deaths at every store and write, one trace a seed, and a strict reader."""

import json

import attrs
import pytest

from triolet.engine.messages import AddRequest
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.fuzzer import draw_round
from triolet.fuzz.fuzzers.takeover import FATAL_OVER_S, FUZZER, PLAIN, run_takeovers, undisturbed
from triolet.fuzz.simulator.plan import Event
from triolet.fuzz.simulator.streams import Violation
from triolet.fuzz.simulator.takeover.answers import ByteReader
from triolet.fuzz.simulator.takeover.bugs import TAKEOVER_BUGS
from triolet.fuzz.simulator.takeover.clients import SEEDS_EACH
from triolet.fuzz.simulator.takeover.connections import SimConnections
from triolet.fuzz.simulator.takeover.plan import Death, Kind, Talk

# So many at most, of all places where one may be.
DEATHS_MAX = 30


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.FATAL])
def test_a_client_loses_nothing_wherever_its_frontend_dies(kind: Kind) -> None:
    talk = Talk(name="client", kind=kind, seed=3, tokens=8, buffer_bytes=300, piece_bytes=100)
    setup = attrs.evolve(PLAIN, window_tokens=4)
    effects = undisturbed((setup, talk)).effects
    for place in range(0, effects, 1 + effects // DEATHS_MAX):
        events: list[Event] = [
            setup,
            talk,
            Death(effects=place, is_torn=place % 2 == 0),
        ]
        assert run_takeovers(events).reached["crash"] == 1, place


def test_a_request_that_ends_its_process_ends_three_and_harms_no_later_client() -> None:
    fatal = Talk(name="fatal", kind=Kind.FATAL, seed=1, tokens=1)
    later = Talk(name="client", kind=Kind.RESPONSES, seed=3, tokens=8, at_s=FATAL_OVER_S)
    assert run_takeovers([PLAIN, fatal, later]).reached["crash"] == 3


def test_a_connection_without_a_slot_ends_with_its_process() -> None:
    talks = [
        Talk(name=f"client-{number}", kind=Kind.RESPONSES, seed=number, tokens=70)
        for number in (1, 2)
    ]
    reached = run_takeovers([attrs.evolve(PLAIN, slots=1), *talks, Death(effects=100)]).reached
    assert reached["lost without a slot"] == reached["crash"] == 1


def test_a_seed_has_one_trace() -> None:
    events = draw_round(FUZZER, 1, 4)
    assert run_takeovers(events).digest == run_takeovers(events).digest


def test_a_request_under_two_ids_is_seen() -> None:
    connections = SimConnections(1, [], pytest.fail, pytest.fail)
    sampling = SamplingParams(seed=SEEDS_EACH + 2)
    for request_id in ("a", "a", "b"):
        connections.check_executed(SEEDS_EACH)
        add = AddRequest(
            request_id=request_id,
            attempt=1,
            prompt_token_ids=[9],
            sampling=sampling,
            eos_token_ids=[],
        )
        connections.handle_sent(add)
    with pytest.raises(Violation, match="request 2 of one client was executed 2 times"):
        connections.check_executed(SEEDS_EACH)


def test_quick_bugs_are_planted_by_name() -> None:
    assert FUZZER.faults.keys() < TAKEOVER_BUGS.keys()


EVENTS = [{"type": "x", "sequence_number": 0}, {"type": "y", "sequence_number": 1}]
COMPACT = (",", ":")
BODY = b"".join(b"data: %b\n\n" % json.dumps(x, separators=COMPACT).encode() for x in EVENTS)
STREAM = b"".join(
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    ]
)


def said(data: bytes) -> list[str]:
    reader = ByteReader()
    reader.feed(data)
    if not reader.is_between:
        raise Violation("half an answer")
    return reader.said()


@pytest.mark.parametrize("place", range(len(STREAM)))
def test_a_byte_that_is_missing_or_comes_twice_is_seen(place: int) -> None:
    whole = said(STREAM)
    for spoiled in (STREAM[:place] + STREAM[place + 1 :], STREAM[: place + 1] + STREAM[place:]):
        try:
            assert said(spoiled) != whole
        except Violation:
            continue


def test_how_tokens_came_together_is_no_difference() -> None:
    def stream(*deltas: list[int]) -> bytes:
        chunks = b""
        for number, ids in enumerate(deltas):
            event = {"type": "response.output_text.delta", "sequence_number": number}
            event |= {"delta": "x" * len(ids), "token_ids": ids}
            data = b"data: %b\n\n" % json.dumps(event).encode()
            chunks += b"%x\r\n%b\r\n" % (len(data), data)
        return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"

    assert said(stream([1, 2], [3])) == said(stream([1], [2, 3])) != said(stream([1], [3, 2]))
