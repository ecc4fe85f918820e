"""Collectors, streams and credit: nothing is lost or doubled, however putting and taking mix."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.errors import EngineDied, InvalidParameter
from triolet.engine.messages import FinishReason, RequestEvent, RequestEventKind
from triolet.engine.sampling_params import TOKENS_MAX
from triolet.runtime.errors import ProcessingFailed
from triolet.runtime.frontend.generation import GenerationStream
from triolet.runtime.frontend.output_collector import ChoicesCollector, OutputCollector, merge
from triolet.runtime.frontend.request_flow import CreditWindow, StreamCredit
from triolet.runtime.text.outputs import GenerationOutput, Usage


def texts_of(token_ids: list[int]) -> list[str]:
    return [chr(ord("a") + token_id % 26) for token_id in token_ids]


class Letters:
    """Decodes each token to a letter; a bug is in 99."""

    def handle_tokens(self, token_ids: list[int]) -> list[str]:
        if 99 in token_ids:
            raise ZeroDivisionError("a bug")
        return texts_of(token_ids)


def make(*, whole: bool = False) -> OutputCollector:
    return OutputCollector("r", Letters(), whole)


def piece(first: int, count: int = 1, *, finish: FinishReason | None = None) -> GenerationOutput:
    ids = list(range(first, first + count))
    texts = texts_of(ids)
    return GenerationOutput("".join(texts), ids, first + count, finish_reason=finish, texts=texts)


def put(collector: OutputCollector, output: GenerationOutput) -> None:
    """Written down first, as the ledger does."""
    collector.token_ids.extend(output.token_ids)
    collector.settle()
    collector.put(output)


def put_tokens(collector: OutputCollector, *token_ids: int) -> None:
    collector.token_ids.extend(token_ids)
    collector.put_tokens(len(token_ids))


@attrs.define(eq=False)
class Listener:
    """Notes what it is called with, then acts."""

    act: Callable[[], object] = lambda: None
    ends: list[bool] = attrs.field(factory=list, init=False)

    def on_output(self, is_end: bool) -> None:
        self.ends.append(is_end)
        self.act()


@attrs.define(eq=False)
class Flow:
    """A choice without an engine; wants to be called again at `reports_at` tokens."""

    collector: OutputCollector = attrs.field(factory=make)
    reports_at: float = 3
    consumed: list[int] = attrs.field(factory=list, init=False)
    granted: list[int] = attrs.field(factory=list, init=False)

    def handle_consumed(self, token_count: int) -> float:
        self.consumed.append(token_count)
        return self.reports_at

    @property
    def client_credit(self) -> int | None:
        return sum(self.granted)

    def handle_granted(self, tokens: int) -> None:
        self.granted.append(tokens)

    def end(self, reason: FinishReason) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing runs."""


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
