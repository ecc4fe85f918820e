"""A stream gives each token once, keeps the whole, tells how far it was consumed, and ends once."""

from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.errors import EngineDied, InvalidParameter
from triolet.engine.messages import FinishReason
from triolet.engine.sampling_params import TOKENS_MAX
from triolet.runtime.frontend.generation import GenerationOutput, GenerationStream, Usage
from triolet.runtime.frontend.output_collector import OutputCollector
from triolet.runtime.frontend.request_flow import StreamCredit
from triolet.transports.credits import CreditWindow

from .collectors import Flow, Listener, put

LAST = GenerationOutput("c", [7], 3, finish_reason=FinishReason.STOP, stop_reason=7)


def make_stream() -> tuple[OutputCollector, GenerationStream, list[int]]:
    flow = Flow()
    return flow.collector, GenerationStream("r1", [1, 2], [flow]), flow.consumed


async def test_the_stream_keeps_the_whole() -> None:
    collector, stream, consumed = make_stream()
    put(collector, GenerationOutput("a", [5], 1))
    assert await stream.__anext__() == GenerationOutput("a", [5], 1)
    assert stream.text == "a"
    put(collector, GenerationOutput("b", [6], 2))
    put(collector, LAST)
    collector.cached_tokens = 1
    assert [output.text for output in [part async for part in stream]] == ["bc"]
    assert (stream.text, stream.token_ids) == ("abc", [5, 6, 7])
    assert (stream.finish_reason, stream.stop_reason) == (FinishReason.STOP, 7)
    assert stream.usage == Usage(prompt_tokens=2, output_tokens=3, cached_tokens=1)
    assert consumed == [1]  # the end needs no credit


async def test_who_counts_is_told_from_the_count_that_it_named() -> None:
    collector, stream, consumed = make_stream()
    for count in range(1, 6):
        put(collector, GenerationOutput("a", [5], count))
        await stream.__anext__()
    assert consumed == [1, 3, 4, 5]


async def test_tokens_before_a_death_are_given_and_then_the_error_once() -> None:
    collector, stream, _ = make_stream()
    put(collector, GenerationOutput("a", [5], 1))
    collector.fail(EngineDied("engine 0", "SIGKILL"))
    assert (await stream.__anext__()).text == "a"
    with pytest.raises(EngineDied):
        await stream.__anext__()
    with pytest.raises(StopAsyncIteration):
        await stream.__anext__()


async def test_grants_are_passed_on_and_never_negative_or_in_parts() -> None:
    flow = Flow()
    stream = GenerationStream("r1", [1], [flow])
    stream.grant(3)
    stream.grant(0)
    wrong: list[Any] = [-1, 1.5, "3", True]
    for tokens in wrong:
        with pytest.raises(InvalidParameter, match="credit"):
            stream.grant(tokens)
    assert flow.granted == [3, 0]


async def test_cancelling_the_consumer_does_not_end_the_stream() -> None:
    collector, stream, _ = make_stream()
    with trio.CancelScope() as scope:
        scope.cancel("in the middle of a wait")
        await stream.__anext__()
    put(collector, LAST)
    assert (await stream.collect()).token_ids == [7]


def test_a_listener_takes_what_iteration_would_give() -> None:
    collector, stream, consumed = make_stream()
    taken: list[GenerationOutput | None] = []
    listener = Listener(lambda: taken.append(stream.take_nowait()))
    stream.listen(listener)
    put(collector, GenerationOutput("a", [5], 1))
    put(collector, GenerationOutput("bc", [6, 7], 3, finish_reason=FinishReason.STOP))
    assert [output and output.text for output in taken] == ["a", "bc"]
    assert listener.ends == [False, True]
    assert (stream.token_ids, stream.text) == ([5, 6, 7], ""), "it keeps the text itself"
    assert stream.finish_reason is LAST.finish_reason
    assert consumed == [1]
    assert stream.take_nowait() is None, "nothing comes after the end"


def test_a_listener_meets_the_error_once() -> None:
    collector, stream, _ = make_stream()
    collector.fail(EngineDied("engine 0", "SIGKILL"))
    with pytest.raises(EngineDied):
        stream.take_nowait()
    assert stream.take_nowait() is None


@pytest.mark.parametrize(
    ("window", "granted", "credit"), [(None, None, None), (8, None, 8), (None, 3, 3), (8, 3, 3)]
)
def test_the_first_credit_is_the_lower_limit(
    window: int | None, granted: int | None, credit: int | None
) -> None:
    machine = StreamCredit(None if window is None else CreditWindow(window), granted)
    assert machine.credit == credit
    machine.check_invariants()


def test_a_client_without_a_limit_has_nothing_to_grant() -> None:
    machine = StreamCredit(CreditWindow(8))
    assert machine.handle_granted(100) is None
    assert machine.credit == 8


def test_what_is_granted_counts_up_to_the_window() -> None:
    machine = StreamCredit(CreditWindow(8), 0)
    assert machine.handle_granted(3) == 3
    assert machine.handle_granted(10) == 8
    assert machine.handle_granted(1) is None
    assert machine.handle_consumed(8) == 14
    assert machine.handle_consumed(14) is None


def test_grants_stay_within_the_integers_of_the_wire() -> None:
    machine = StreamCredit(None, 1)
    assert machine.handle_granted(2**70) == TOKENS_MAX


@given(st.integers(1, 20), st.integers(0, 5), st.lists(st.tuples(st.booleans(), st.integers(0, 9))))
def test_a_reader_gets_all_that_was_granted(
    window: int, first: int, moves: list[tuple[bool, int]]
) -> None:
    machine, granted, consumed = StreamCredit(CreditWindow(window), first), first, 0
    credit = machine.credit
    for is_grant, amount in moves:
        if is_grant:
            granted += amount
            news = machine.handle_granted(amount)
        else:
            assert credit is not None
            consumed = min(consumed + amount, credit)
            news = machine.handle_consumed(consumed)
        machine.check_invariants()
        assert news is None or credit is None or news > credit
        credit = credit if news is None else news
        assert credit is not None
        assert consumed <= credit <= granted
        # Stuck only for want of a grant, or while there is something to take.
        assert credit > consumed or credit == granted
