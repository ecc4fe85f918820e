"""A frontend dies and its successor takes its home over: the same tokens, and nothing by the dead.

There is no journal here: what the successor's ledger begins with is given by hand.
"""

import pathlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import pytest
import trio

from triolet.engine.core.homes import Fenced
from triolet.engine.messages import AddRequest, FinishReason, RequestOutput
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.doubles.bed import Bed, open_bed
from triolet.runtime.frontend.ledger import ATTEMPTS_OF_A_TERM
from triolet.runtime.runtime import Runtime
from triolet.transports.links.channel import Peer

PARAMS = SamplingParams(max_tokens=40, seed=7, temperature=0.8, ignore_eos=True)
# So far an engine goes on without its reader.
WINDOW_TOKENS = 8
NO_BOUND = 10**6


@attrs.define(eq=False)
class Sink:
    """Where a stream goes on in a successor."""

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    # Tokens whose logprobs have come.
    positions: int = 0

    def put_token(self) -> None:
        """It is in the list already."""

    def put(self, output: RequestOutput) -> None:
        self.finish_reason = output.finish_reason or self.finish_reason
        if output.logprobs is not None:
            self.positions += len(output.logprobs.ranks) // 4

    def fail(self, error: Exception) -> None:
        self.error = error

    async def until(self, tokens: int) -> None:
        await until(lambda: len(self.token_ids) >= tokens)


# What the dead life has sent last, and to which engine.
Written = list[tuple[AddRequest, Peer]]


def written_down(frontend: Runtime, *, less: int = 0) -> Written:
    """What a journal would have, or so many tokens of each less."""
    found = []
    for entry in frontend.client.ledger._entries.values():
        assert entry.peer is not None
        sent = entry.message()
        tokens = sent.output_token_ids[: len(sent.output_token_ids) - less]
        found.append((attrs.evolve(sent, output_token_ids=tokens), entry.peer))
    return found


def rebuild(frontend: Runtime, written: Written) -> list[Sink]:
    """The ledger, by hand."""
    client, sinks = frontend.client, []
    for request, peer in written:
        sink = Sink(request.request_id, list(request.output_token_ids))
        ready = client.engines._ready.get(peer) or next(iter(client.engines._ready.values()))
        client.ledger.handle_adopted(request, peer, trio.current_time(), sink, ready=ready)
        client.ledger.check_invariants()
        sinks.append(sink)
    return sinks


def take_over(frontend: Runtime, written: Written, *, credit: int = NO_BOUND) -> list[Sink]:
    """Rebuild the ledger, let the links begin, and read as far as that."""
    sinks = rebuild(frontend, written)
    frontend.client.handle_rebuilt()
    for sink in sinks:
        frontend.client.grant(sink, credit)
    return sinks


async def until(is_so: Callable[[], bool]) -> None:
    """Steps run in a thread, so that there is nothing to wait for by name."""
    with trio.fail_after(20):
        while not is_so():
            await trio.lowlevel.checkpoint()


async def tokens_of(bed: Bed, prompt: str, params: SamplingParams = PARAMS) -> list[int]:
    """Of an undisturbed run."""
    return (await bed.answer(prompt, params)).token_ids


@asynccontextmanager
async def streams_of(
    bed: Bed, *prompts: str, params: SamplingParams = PARAMS
) -> AsyncIterator[None]:
    """Streams without a reader, at the end of their credit."""
    ledger = bed.client.ledger

    async def hold(prompt: str) -> None:
        async with bed.frontend.generate(prompt, params):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for prompt in prompts:
            nursery.start_soon(hold, prompt)
        await until(
            lambda: (
                len(ledger) == len(prompts)
                and all(len(e.token_ids) >= WINDOW_TOKENS for e in ledger._entries.values())
            )
        )
        yield
        nursery.cancel_scope.cancel("the test is over")


@asynccontextmanager
async def small_bed(folder: pathlib.Path, engines: int = 1) -> AsyncIterator[Bed]:
    async with open_bed(folder, engines=engines, window_tokens=WINDOW_TOKENS) as bed:
        yield bed


def added(bed: Bed) -> int:
    return sum(each.core.statistics().requests_added for each in bed.servers.values())


def live(bed: Bed) -> int:
    return sum(each.core.unfinished_count() for each in bed.servers.values())


@pytest.mark.parametrize("less", [0, 1, WINDOW_TOKENS])
async def test_streams_go_on_at_their_engine_token_for_token(
    null_folder: pathlib.Path, less: int
) -> None:
    """Also if less is written down than the engine has sent: none of that was offered."""
    async with small_bed(null_folder) as bed:
        prompts = ("hello world", "another one")
        expected = [await tokens_of(bed, prompt) for prompt in prompts]
        before = added(bed)
        async with streams_of(bed, *prompts):
            written = written_down(bed.frontend, less=less)
            bed.cut_off(bed.frontend)
            async with bed.open_successor(2) as successor:
                sinks = take_over(successor, written)
                await until(lambda: all(sink.finish_reason for sink in sinks))
                assert sorted(sink.token_ids for sink in sinks) == sorted(expected)
                assert (added(bed), live(bed)) == (before + 2, 0), "nothing was sent again"
                assert successor.client.ledger.sent_again == 0
                assert len(successor.client.ledger) == 0
                await bed.wait_quiet()


async def test_a_stream_outlives_one_life_after_the_other(null_folder: pathlib.Path) -> None:
    async with small_bed(null_folder) as bed:
        expected = await tokens_of(bed, "hello world")
        before = added(bed)
        async with streams_of(bed, "hello world"), AsyncExitStack() as lives:
            frontend = bed.frontend
            for term in range(2, 6):
                written = written_down(frontend)
                bed.cut_off(frontend)
                frontend = await lives.enter_async_context(bed.open_successor(term))
                credit = term * WINDOW_TOKENS
                (sink,) = take_over(frontend, written, credit=credit)
                await sink.until(credit)
            assert (sink.token_ids, sink.finish_reason) == (expected, FinishReason.LENGTH)
            assert added(bed) == before + 1
            await bed.wait_quiet()


async def test_nothing_is_aborted_while_a_ledger_is_rebuilt(null_folder: pathlib.Path) -> None:
    """An empty RESYNC would abort everything, and an ABORT in front of one what goes on."""
    async with small_bed(null_folder) as bed:
        expected = await tokens_of(bed, "hello world")
        async with streams_of(bed, "hello world"):
            written = written_down(bed.frontend)
            bed.cut_off(bed.frontend)
            async with bed.open_successor(2) as successor:
                await until(lambda: bool(successor.client._links_waiting))
                assert (live(bed), successor.client.engines.taking()) == (1, {})
                (sink,) = rebuild(successor, written)
                successor.client.grant(sink, NO_BOUND)  # it goes with the RESYNC
                await bed.settle()
                assert (live(bed), len(sink.token_ids)) == (1, WINDOW_TOKENS)
                successor.client.handle_rebuilt()
                await until(lambda: sink.finish_reason is not None)
                assert sink.token_ids == expected
                await bed.wait_quiet()


async def test_what_the_ledger_does_not_name_is_aborted(null_folder: pathlib.Path) -> None:
    async with small_bed(null_folder) as bed, streams_of(bed, "hello world", "another one"):
        written = written_down(bed.frontend)[1:]
        bed.cut_off(bed.frontend)
        async with bed.open_successor(2) as successor:
            assert live(bed) == 2
            (sink,) = take_over(successor, written)
            await until(lambda: sink.finish_reason is not None)
            counts = bed.servers[0].core.statistics()
            assert (counts.requests_aborted, live(bed)) == (1, 0)
            await bed.wait_quiet()


async def test_without_a_ledger_the_first_resync_aborts_all(null_folder: pathlib.Path) -> None:
    async with small_bed(null_folder) as bed, streams_of(bed, "hello world", "another one"):
        bed.cut_off(bed.frontend)
        async with bed.open_successor(2) as successor:
            assert live(bed) == 2
            successor.client.handle_rebuilt()
            await bed.wait_quiet()
            assert live(bed) == 0


@pytest.mark.parametrize("forgets", [True, False])
async def test_what_a_lower_term_says_late_does_nothing(
    null_folder: pathlib.Path, forgets: bool
) -> None:
    """Its link is forgotten, or is still up as its life was not noticed."""
    async with small_bed(null_folder) as bed:
        expected = await tokens_of(bed, "hello world")
        before = added(bed)
        async with streams_of(bed, "hello world"):
            written, zombie = written_down(bed.frontend), bed.client
            (entry,) = zombie.ledger._entries.values()
            async with bed.open_successor(2, forgets=forgets) as successor:
                (sink,) = rebuild(successor, written)
                successor.client.handle_rebuilt()
                await until(lambda: bool(successor.client.engines.taking()))
                zombie.grant(entry.sink, NO_BOUND)
                zombie.submit([(attrs.evolve(entry.request, request_id="late"), Sink("late", []))])
                zombie.abort(entry.sink)
                await bed.settle()
                bed.servers[0].channel.break_link(Peer("frontend", 0, 1), "it is to begin again")
                await bed.settle()
                assert (live(bed), len(sink.token_ids)) == (1, WINDOW_TOKENS)
                assert added(bed) == before + 1
                # What it says of itself besides, as its link begins again, is fenced, too.
                fenced = bed.servers[0].homes.fenced
                assert set(fenced) == (set() if forgets else {Fenced.LOWER_TERM})
                assert forgets or fenced[Fenced.LOWER_TERM] >= 3
                successor.client.grant(sink, NO_BOUND)
                await until(lambda: sink.finish_reason is not None)
                assert sink.token_ids == expected
                await bed.wait_quiet()


async def test_what_was_given_up_meanwhile_is_sent_again(null_folder: pathlib.Path) -> None:
    async with small_bed(null_folder) as bed:
        expected = await tokens_of(bed, "hello world")
        async with streams_of(bed, "hello world"):
            written = written_down(bed.frontend)
            bed.cut_off(bed.frontend)
            bed.servers[0].handle_listed({}, [])
            await bed.wait_quiet()
            async with bed.open_successor(2) as successor:
                (sink,) = take_over(successor, written)
                await until(lambda: sink.finish_reason is not None)
                assert sink.token_ids == expected
                assert successor.client.ledger.sent_again == 1
                assert successor.client.ledger._attempts == 2 * ATTEMPTS_OF_A_TERM + 1
                await bed.wait_quiet()


@pytest.mark.parametrize("less", [0, 3])
async def test_logprobs_are_whole_though_a_replay_brought_more_than_is_written_down(
    null_folder: pathlib.Path, less: int
) -> None:
    params = attrs.evolve(PARAMS, logprobs=1)
    async with small_bed(null_folder, engines=2) as bed:
        expected = await tokens_of(bed, "hello world", params)
        async with streams_of(bed, "hello world", params=params):
            ((_, first),) = written_down(bed.frontend)
            bed.lose_engine(first.rank)
            second = bed.servers[1 - first.rank]
            await until(lambda: second.core.unfinished_count() == 1)
            written = written_down(bed.frontend, less=less)
            bed.cut_off(bed.frontend)
            async with bed.open_successor(2) as successor:
                (sink,) = take_over(successor, written)
                await until(lambda: bool(sink.finish_reason or sink.error))
                assert (sink.token_ids, sink.error) == (expected, None)
                assert sink.positions == len(expected) - (WINDOW_TOKENS - less)
                assert successor.client.ledger.sent_again == bool(less)
