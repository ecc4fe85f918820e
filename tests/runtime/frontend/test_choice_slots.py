"""Several choices, one consumer: each in its order, each in its turn, none lost."""

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.messages import FinishReason
from triolet.runtime.frontend.choice_slots import ChoiceSlots
from triolet.runtime.frontend.output_collector import MergedSlot
from triolet.runtime.text.outputs import GenerationOutput

STOP = FinishReason.STOP


def make(count: int = 2, *, whole: bool = False) -> tuple[ChoiceSlots, list[MergedSlot]]:
    slots = [MergedSlot(only_when_finished=whole) for _ in range(count)]
    return ChoiceSlots(slots), slots


def say(text: str, count: int, reason: FinishReason | None = None) -> GenerationOutput:
    return GenerationOutput(text, [count], count, finish_reason=reason)


async def test_choices_take_turns_and_what_waits_is_merged() -> None:
    choices, slots = make()
    slots[1].put(say("a", 1))
    slots[0].put(say("b", 1))
    slots[1].put(say("c", 2))
    first, second = await choices.take(), await choices.take()
    assert (first.index, first.text, second.index, second.text) == (1, "ac", 0, "b")
    assert choices.take_nowait() is None
    slots[0].put(say("d", 2))
    third = choices.take_nowait()
    assert third is not None
    assert (third.index, third.text) == (0, "d")


async def test_it_waits_until_there_is_something() -> None:
    choices, slots = make()
    taken: list[GenerationOutput] = []

    async def take() -> None:
        taken.append(await choices.take())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await choices.take()
        assert not taken
        slots[1].put(say("a", 1, STOP))
    assert (taken[0].index, taken[0].finish_reason) == (1, STOP)
    seen = [choices.finished]
    slots[0].put(say("b", 1, STOP))
    assert [*seen, choices.finished] == [False, True]
    assert choices.tokens_waiting == 1


async def test_cancellation_loses_nothing() -> None:
    choices, slots = make()
    with trio.move_on_after(0) as scope:
        await choices.take()
    assert scope.cancelled_caught
    slots[0].put(say("a", 1))
    with trio.CancelScope() as scope:
        scope.cancel()
        await choices.take()
    assert (await choices.take()).text == "a"


async def test_whole_answers_come_when_each_is_whole() -> None:
    choices, slots = make(whole=True)
    slots[0].put(say("a", 1))
    assert choices.take_nowait() is None
    slots[1].put(say("b", 1, STOP))
    slots[0].put(say("c", 2, STOP))
    texts = [(await choices.take()).text, (await choices.take()).text]
    assert texts == ["b", "ac"]


async def test_a_failure_of_one_is_raised_after_what_was_put_before() -> None:
    choices, slots = make()
    slots[0].put(say("a", 1))
    slots[0].fail(ValueError("broken"))
    assert (await choices.take()).text == "a"
    with pytest.raises(ValueError, match="broken"):
        await choices.take()


async def test_closing_wakes_whoever_waits() -> None:
    choices, slots = make()

    async def take() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await choices.take()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        choices.close()
    slots[0].put(say("late", 1))
    with pytest.raises(trio.ClosedResourceError):
        choices.take_nowait()


def test_who_follows_is_called_for_each_choice() -> None:
    choices, slots = make()
    calls: list[int] = []
    choices.follow(lambda _: calls.append(choices.tokens_waiting))
    slots[0].put(say("a", 1))
    slots[0].put(say("b", 2))
    slots[1].put(say("c", 1))
    assert len(calls) == 2


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40).filter(bool),
)
def test_each_choice_is_whole_and_in_order(acts: list[tuple[int, bool]]) -> None:
    choices, slots = make(4)
    said, heard, ended = ["", "", "", ""], ["", "", "", ""], set[int]()

    def take() -> bool:
        output = choices.take_nowait()
        if output is not None:
            heard[output.index] += output.text
        return output is not None

    for number, (index, is_take) in enumerate(acts):
        if is_take:
            take()
        elif index not in ended:
            said[index] += chr(ord("a") + number % 26)
            last = number % 7 == 0
            slots[index].put(say(said[index][-1], len(said[index]), STOP if last else None))
            ended |= {index} if last else set()
    while take():
        pass
    assert heard == said
