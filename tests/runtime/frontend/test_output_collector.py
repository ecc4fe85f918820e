"""Nothing is lost or doubled, however putting, taking, turns of choices and cancelling mix."""

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.errors import EngineDied
from triolet.engine.messages import FinishReason, RequestEvent, RequestEventKind
from triolet.runtime.errors import ProcessingFailed
from triolet.runtime.frontend.output_collector import ChoicesCollector, OutputCollector, merge
from triolet.runtime.text.outputs import GenerationOutput

from .collectors import Listener, make, piece, put, put_tokens

STOP = FinishReason.STOP
DIED = EngineDied("engine 0", "SIGKILL")


def event(kind: RequestEventKind, count: int) -> GenerationOutput:
    return GenerationOutput("", [], count, events=(RequestEvent(kind),))


@given(st.lists(st.sampled_from(["token", "tokens", "output", "event", "take"]), max_size=30))
def test_single_tokens_are_merged_as_outputs_are(moves: list[str]) -> None:
    collector, taken, first = make(), list[GenerationOutput](), 0
    for move in moves:
        if move == "take":
            output = collector.take_nowait()
            taken += [output] if output is not None else []
        elif move == "event":
            put(collector, event(RequestEventKind.RESUMED, first))
        elif move == "tokens":
            put_tokens(collector, first, first + 1)
            first += 2
        elif move == "token":
            put_tokens(collector, first)
            first += 1
        else:
            put(collector, piece(first))
            first += 1
        collector.check_invariants()
    put(collector, piece(first, finish=STOP))
    while not (taken and taken[-1].finish_reason):
        last = collector.take_nowait()
        assert last is not None
        taken.append(last)
        collector.check_invariants()
    whole = merge(taken)
    assert attrs.evolve(whole, events=()) == piece(0, first + 1, finish=STOP)
    assert len(whole.events) == moves.count("event")


def test_what_is_written_down_and_not_put_is_not_taken() -> None:
    """Of one message the ledger writes all down before the first is put."""
    collector = make()
    collector.token_ids += [0, 1, 2]
    collector.put_tokens()
    assert collector.take_nowait() == piece(0)
    collector.put_tokens()
    collector.put(piece(2, finish=STOP))
    assert collector.take_nowait() == piece(1, 2, finish=STOP)


def test_events_stay_where_they_were_among_the_tokens() -> None:
    collector = make()
    put(collector, piece(0))
    put(collector, piece(1))
    preempted = event(RequestEventKind.PREEMPTED, 2)
    resumed = event(RequestEventKind.RESUMED, 2)
    put(collector, preempted)
    put(collector, resumed)
    put(collector, piece(2))
    put(collector, piece(3, finish=FinishReason.LENGTH))
    assert collector.take_nowait() == piece(0, 2)
    whole = piece(2, 2, finish=FinishReason.LENGTH)
    events = preempted.events + resumed.events
    assert collector.take_nowait() == attrs.evolve(whole, events=events)


async def test_putting_wakes_the_reader_and_a_second_one_is_refused() -> None:
    collector, taken = make(), list[GenerationOutput]()

    async def take() -> None:
        taken.append(await collector.take())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await collector.take()
        put(collector, piece(0))
    assert taken == [piece(0)]


async def test_only_the_end_wakes_who_wants_the_whole() -> None:
    collector, listener = make(whole=True), Listener()
    collector.listen(listener)
    put(collector, piece(0))
    put_tokens(collector, 1, 2)
    assert (collector.take_nowait(), collector.tokens_waiting, listener.ends) == (None, 3, [])
    put(collector, piece(3, finish=STOP))
    assert listener.ends == [True]
    assert await collector.take() == piece(0, 4, finish=STOP)


async def test_an_error_wakes_and_comes_after_what_was_put_before() -> None:
    collector, listener = make(), Listener()
    collector.listen(listener)
    put(collector, piece(0))
    collector.fail(DIED)
    collector.fail(EngineDied("engine 0", "a second cause"))
    put(collector, piece(1))
    assert listener.ends == [False, True]
    assert await collector.take() == piece(0)
    with pytest.raises(EngineDied, match="SIGKILL"):
        await collector.take()


async def test_closing_wakes_and_drops() -> None:
    collector = make()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def close() -> None:
            await trio.testing.wait_all_tasks_blocked()
            collector.close()

        with pytest.raises(trio.ClosedResourceError):
            await collector.take()
    put(collector, piece(0))
    put_tokens(collector, 1)
    collector.fail(DIED)
    assert collector.tokens_waiting == 0
    with pytest.raises(trio.ClosedResourceError):
        collector.take_nowait()


async def test_taking_is_a_checkpoint_and_cancellation_loses_nothing() -> None:
    collector = make()
    put(collector, piece(0))
    with trio.CancelScope() as scope:
        scope.cancel("before the take")
        await collector.take()
    assert scope.cancelled_caught
    with trio.testing.assert_checkpoints():
        assert await collector.take() == piece(0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_take, collector)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel("first")
        put(collector, piece(1))
    assert await collector.take() == piece(1)


async def _take(collector: OutputCollector) -> None:
    await collector.take()


def test_a_listener_is_called_once_until_it_has_taken_all() -> None:
    collector, listener = make(), Listener()
    collector.listen(listener)
    put(collector, piece(0))
    put_tokens(collector, 1)
    assert listener.ends == [False]
    assert collector.take_nowait() == piece(0, 2)
    assert collector.take_nowait() is None
    put_tokens(collector, 2)
    assert listener.ends == [False, False]


async def test_who_takes_meets_a_failure_of_the_decoder() -> None:
    collector = make()
    put_tokens(collector, 99)
    with pytest.raises(ProcessingFailed, match="r could not be processed: ZeroDivisionError"):
        await collector.take()


def choices_of(
    count: int, *, whole: bool = False
) -> tuple[ChoicesCollector, list[OutputCollector]]:
    collectors = [make(whole=whole) for _ in range(count)]
    return ChoicesCollector(collectors), collectors


async def test_choices_take_turns_and_what_waits_is_merged() -> None:
    choices, each = choices_of(2)
    put(each[1], piece(0))
    put(each[0], piece(0))
    put(each[1], piece(1))
    assert choices.tokens_waiting == 3
    assert await choices.take() == attrs.evolve(piece(0, 2), index=1)
    assert await choices.take() == piece(0)
    assert choices.take_nowait() is None
    put(each[0], piece(1))
    assert choices.take_nowait() == piece(1)


async def test_choices_end_when_each_has() -> None:
    choices, each = choices_of(2, whole=True)
    listener = Listener()
    choices.listen(listener)
    put(each[0], piece(0))
    put(each[1], piece(0, finish=STOP))
    seen = [choices.finished]
    put(each[0], piece(1, finish=STOP))
    assert [*seen, choices.finished] == [False, True]
    assert listener.ends == [False, True]
    assert [(await choices.take()).index, (await choices.take()).index] == [1, 0]


async def test_a_failure_of_one_choice_is_raised_after_what_was_put_before() -> None:
    choices, each = choices_of(2)
    put(each[0], piece(0))
    each[0].fail(DIED)
    assert await choices.take() == piece(0)
    with pytest.raises(EngineDied):
        await choices.take()
    choices.close()
    put(each[1], piece(0))
    with pytest.raises(trio.ClosedResourceError):
        choices.take_nowait()


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40).filter(bool))
def test_each_choice_is_whole_and_in_order(acts: list[tuple[int, bool]]) -> None:
    choices, each = choices_of(4)
    taken: list[list[GenerationOutput]] = [[], [], [], []]
    ended = set[int]()

    def take() -> bool:
        output = choices.take_nowait()
        if output is not None:
            taken[output.index].append(output)
        return output is not None

    for number, (index, is_take) in enumerate(acts):
        if is_take:
            take()
        elif index not in ended:
            last = number % 7 == 0
            put(each[index], piece(len(each[index].token_ids), finish=STOP if last else None))
            ended |= {index} if last else set()
    while take():
        pass
    for collector, outputs in zip(each, taken, strict=True):
        assert [token for output in outputs for token in output.token_ids] == collector.token_ids
