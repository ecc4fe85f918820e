"""The slot loses nothing and doubles nothing, however putting, taking and cancelling mix."""

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.errors import EngineDied
from triolet.engine.messages import FinishReason, RequestEvent, RequestEventKind
from triolet.runtime.frontend.output_collector import MergedSlot, merge
from triolet.runtime.text.outputs import GenerationOutput


def texts_of(token_ids: list[int]) -> list[str]:
    return [chr(ord("a") + token_id % 26) for token_id in token_ids]


def piece(first: int, count: int = 1, *, finish: FinishReason | None = None) -> GenerationOutput:
    ids = list(range(first, first + count))
    texts = texts_of(ids)
    return GenerationOutput("".join(texts), ids, first + count, finish_reason=finish, texts=texts)


async def take(slot: MergedSlot) -> None:
    await slot.take()


@given(st.lists(st.integers(1, 4), min_size=1, max_size=20))
def test_merging_keeps_every_token_in_order(counts: list[int]) -> None:
    outputs, first = [], 0
    for count in counts:
        outputs.append(piece(first, count))
        first += count
    assert merge(outputs) == piece(0, first)


@given(st.lists(st.sampled_from(["token", "tokens", "output", "event", "take"]), max_size=30))
def test_single_tokens_are_merged_as_outputs_are(moves: list[str]) -> None:
    event = RequestEvent(RequestEventKind.RESUMED)

    async def run() -> None:
        slot, taken, first = MergedSlot(texts_of=texts_of), list[GenerationOutput](), 0
        for move in moves:
            if move == "take":
                if slot.tokens_waiting:
                    taken.append(await slot.take())
            elif move == "event":
                slot.put(GenerationOutput("", [], first, events=(event,)))
            elif move == "tokens":
                slot.put_tokens([first, first + 1])
                first += 2
            else:
                one, first = piece(first), first + 1
                if move == "token":
                    slot.put_token(one.token_ids[0])
                else:
                    slot.settle()  # as its text may be part of an earlier token's
                    slot.put(one)
            slot.check_invariants()
        slot.put(piece(first, finish=FinishReason.STOP))
        while not (taken and taken[-1].finish_reason):
            taken.append(await slot.take())
            slot.check_invariants()
        whole = merge(taken)
        assert attrs.evolve(whole, events=()) == piece(0, first + 1, finish=FinishReason.STOP)
        assert len(whole.events) == moves.count("event")

    trio.run(run)


async def test_what_came_meanwhile_is_taken_as_one() -> None:
    slot = MergedSlot()
    slot.put(piece(0))
    slot.put(piece(1, 2))
    assert slot.tokens_waiting == 3
    assert await slot.take() == piece(0, 3)
    assert slot.tokens_waiting == 0


async def test_events_stay_where_they_were_among_the_tokens() -> None:
    preempted, resumed = (
        RequestEvent(kind) for kind in (RequestEventKind.PREEMPTED, RequestEventKind.RESUMED)
    )
    slot = MergedSlot()
    slot.put(piece(0))
    slot.put(piece(1))
    slot.put(GenerationOutput("", [], 2, events=(preempted,)))
    slot.put(GenerationOutput("", [], 2, events=(resumed,)))
    slot.put(piece(2))
    slot.put(piece(3, finish=FinishReason.LENGTH))
    assert await slot.take() == piece(0, 2)
    whole = piece(2, 2, finish=FinishReason.LENGTH)
    assert await slot.take() == attrs.evolve(whole, events=(preempted, resumed))


async def test_putting_wakes_the_consumer(autojump_clock: trio.testing.MockClock) -> None:
    slot = MergedSlot()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def put_later() -> None:
            await trio.sleep(1)
            slot.put(piece(0))

        assert await slot.take() == piece(0)
        assert trio.current_time() >= 1


async def test_only_the_end_wakes_who_wants_the_whole(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slot = MergedSlot(only_when_finished=True)
    slot.put(piece(0))
    with trio.move_on_after(1) as scope:
        await slot.take()
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def take() -> None:
            assert await slot.take() == piece(0, 3, finish=FinishReason.STOP)

        await trio.testing.wait_all_tasks_blocked()
        slot.put(piece(1))
        assert slot._consumer.is_taken
        slot.put(piece(2, finish=FinishReason.STOP))
        assert not slot._consumer.is_taken


async def test_an_error_comes_after_what_was_put_before() -> None:
    slot = MergedSlot()
    slot.put(piece(0))
    slot.fail(EngineDied("engine 0", "SIGKILL"))
    slot.fail(EngineDied("engine 0", "a second cause"))
    slot.put(piece(1))
    assert await slot.take() == piece(0)
    with pytest.raises(EngineDied, match="SIGKILL"):
        await slot.take()


async def test_an_error_wakes_the_consumer() -> None:
    slot = MergedSlot()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def fail() -> None:
            await trio.testing.wait_all_tasks_blocked()
            slot.fail(EngineDied("engine 0", "SIGKILL"))

        with pytest.raises(EngineDied):
            await slot.take()


async def test_closing_wakes_and_drops() -> None:
    slot = MergedSlot()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def close() -> None:
            await trio.testing.wait_all_tasks_blocked()
            slot.close()

        with pytest.raises(trio.ClosedResourceError):
            await slot.take()
    slot.put(piece(0))
    slot.fail(EngineDied("engine 0", "late"))
    assert slot.tokens_waiting == 0


async def test_a_second_consumer_is_refused() -> None:
    slot = MergedSlot()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, slot)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await slot.take()
        nursery.cancel_scope.cancel("the test has seen it")


async def test_taking_is_a_checkpoint_even_when_something_is_there() -> None:
    slot = MergedSlot()
    slot.put(piece(0))
    with trio.testing.assert_checkpoints():
        await slot.take()


async def test_cancellation_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    slot = MergedSlot()
    with trio.move_on_after(1):
        await slot.take()
    slot.put(piece(0))
    with trio.CancelScope() as scope:
        scope.cancel("before the take")
        await slot.take()
    assert scope.cancelled_caught
    slot.put(piece(1))
    assert await slot.take() == piece(0, 2)


async def test_put_and_cancel_at_once_lose_nothing() -> None:
    slot = MergedSlot()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, slot)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel("first")
        slot.put(piece(0))
    assert slot.tokens_waiting == 1
    assert await slot.take() == piece(0)


def test_a_follower_is_called_instead_of_a_task() -> None:
    slot = MergedSlot(texts_of=texts_of)
    taken, called = list[GenerationOutput | None](), list[int]()
    assert slot.take_nowait() is None

    def on_ready(_: bool) -> None:
        called.append(slot.tokens_waiting)
        if len(called) != 2:  # it need not take what it is told of
            taken.append(slot.take_nowait())

    slot.follow(on_ready)
    for first in range(3):
        slot.put(piece(first))
    slot.put_token(3)
    assert called == [1, 1], "it has been told that there is something"
    assert taken == [piece(0)]
    assert slot.take_nowait() == piece(1, 3)
    assert slot.take_nowait() is None
    slot.put_token(4)
    assert called == [1, 1, 1]
    slot.close()
    slot.put(piece(5))
    slot.put_token(5)
    slot.put_tokens([5, 6])
    assert len(called) == 3
    assert slot.tokens_waiting == 0
    with pytest.raises(trio.ClosedResourceError):
        slot.take_nowait()


def test_a_follower_of_the_whole_is_called_at_the_end_alone() -> None:
    slot, taken = MergedSlot(only_when_finished=True), list[GenerationOutput | None]()
    slot.follow(lambda _: taken.append(slot.take_nowait()))
    slot.put(piece(0))
    slot.texts_of = texts_of
    slot.put_tokens([1, 2])
    slot.put_token(3)
    assert taken == []
    slot.put(piece(4, finish=FinishReason.STOP))
    assert taken == [piece(0, 5, finish=FinishReason.STOP)]


def test_a_follower_is_told_of_a_failure() -> None:
    slot, raised = MergedSlot(), list[str]()

    def on_ready(_: bool) -> None:
        with pytest.raises(EngineDied) as caught:
            slot.take_nowait()
        raised.append(str(caught.value))

    slot.follow(on_ready)
    slot.fail(EngineDied("engine 0", "SIGKILL"))
    assert len(raised) == 1


async def test_single_tokens_become_text_when_they_are_taken_and_who_takes_meets_a_failure() -> (
    None
):
    asked: list[list[int]] = []

    def fail_later(token_ids: list[int]) -> list[str]:
        asked.append(token_ids)
        if 2 in token_ids:
            raise ZeroDivisionError("a bug")
        return texts_of(token_ids)

    slot = MergedSlot(texts_of=fail_later)
    slot.put_token(0)
    slot.put_token(1)
    assert asked == []
    assert await slot.take() == piece(0, 2)
    slot.put_token(2)
    slot.put_token(3)
    with pytest.raises(ZeroDivisionError):
        await slot.take()
    assert asked == [[0, 1], [2, 3]]
