"""A stream gives each token once, keeps the whole, tells how far it was consumed, and ends once."""

from typing import Any

import pytest
import trio

from triolet.engine.errors import EngineDied, InvalidParameter
from triolet.engine.messages import FinishReason
from triolet.runtime.frontend.generation import GenerationOutput, GenerationStream, Usage
from triolet.runtime.frontend.output_collector import MergedSlot

LAST = GenerationOutput("c", [7], 3, finish_reason=FinishReason.STOP, stop_reason=7)


def make_stream() -> tuple[MergedSlot, GenerationStream, list[int]]:
    slot, consumed = MergedSlot(), list[int]()

    def on_consumed(count: int) -> float:
        consumed.append(count)
        return 3

    return slot, GenerationStream("r1", [1, 2], slot, [on_consumed]), consumed


async def test_the_stream_keeps_the_whole() -> None:
    slot, stream, consumed = make_stream()
    slot.put(GenerationOutput("a", [5], 1))
    assert await stream.__anext__() == GenerationOutput("a", [5], 1)
    assert stream.text == "a"
    slot.put(GenerationOutput("b", [6], 2))
    slot.put(LAST)
    stream.cached_tokens = 1
    assert [output.text for output in [part async for part in stream]] == ["bc"]
    assert (stream.text, stream.token_ids) == ("abc", [5, 6, 7])
    assert (stream.finish_reason, stream.stop_reason) == (FinishReason.STOP, 7)
    assert stream.usage == Usage(prompt_tokens=2, output_tokens=3, cached_tokens=1)
    assert consumed == [1]  # the end needs no credit


async def test_who_counts_is_told_from_the_count_that_it_named() -> None:
    slot, stream, consumed = make_stream()
    for count in range(1, 6):
        slot.put(GenerationOutput("a", [5], count))
        await stream.__anext__()
    assert consumed == [1, 3, 4, 5]


async def test_collect_returns_the_stream() -> None:
    slot, stream, _ = make_stream()
    slot.put(GenerationOutput("ab", [5, 6], 2))
    slot.put(LAST)
    assert (await stream.collect()).text == "abc"
    with pytest.raises(StopAsyncIteration):
        await stream.__anext__()


async def test_tokens_before_a_death_are_given_and_then_the_error_once() -> None:
    slot, stream, _ = make_stream()
    slot.put(GenerationOutput("a", [5], 1))
    slot.fail(EngineDied("engine 0", "SIGKILL"))
    assert (await stream.__anext__()).text == "a"
    with pytest.raises(EngineDied):
        await stream.__anext__()
    with pytest.raises(StopAsyncIteration):
        await stream.__anext__()


async def test_grants_are_passed_on_and_never_negative_or_in_parts() -> None:
    granted: list[int] = []
    stream = GenerationStream("r1", [1], MergedSlot(), on_granted=granted.append)
    stream.grant(3)
    stream.grant(0)
    wrong: list[Any] = [-1, 1.5, "3", True]
    for tokens in wrong:
        with pytest.raises(InvalidParameter, match="credit"):
            stream.grant(tokens)
    assert granted == [3, 0]
    GenerationStream("r2", [1], MergedSlot()).grant(1)  # nobody limits it


async def test_cancelling_the_consumer_does_not_end_the_stream() -> None:
    slot, stream, _ = make_stream()
    with trio.CancelScope() as scope:
        scope.cancel("in the middle of a wait")
        await stream.__anext__()
    slot.put(LAST)
    assert (await stream.collect()).token_ids == [7]


def test_a_follower_takes_what_iteration_would_give() -> None:
    slot, stream, consumed = make_stream()
    taken: list[GenerationOutput] = []
    ends: list[bool] = []

    def on_ready(has_end: bool) -> None:
        ends.append(has_end)
        output = stream.take_nowait()
        assert output is not None
        taken.append(output)

    stream.follow(on_ready)
    slot.put(GenerationOutput("a", [5], 1))
    slot.put(LAST)
    assert [output.text for output in taken] == ["a", LAST.text]
    assert ends == [False, True]
    assert (stream.output_tokens, stream.token_ids) == (LAST.token_count, []), "counted, not kept"
    assert stream.finish_reason is LAST.finish_reason
    assert consumed == [1]
    assert stream.take_nowait() is None, "nothing comes after the end"


def test_a_follower_meets_the_error_once() -> None:
    slot, stream, _ = make_stream()
    slot.fail(EngineDied("engine 0", "SIGKILL"))
    with pytest.raises(EngineDied):
        stream.take_nowait()
    assert stream.take_nowait() is None
