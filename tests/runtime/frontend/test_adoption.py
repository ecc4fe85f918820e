"""A frontend goes on with the streams of the life before it, as its journal has them."""

import pathlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from triolet.engine.messages import FinishReason
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.doubles.bed import Bed, open_bed
from triolet.fuzz.doubles.journal_memory import NotedMemory
from triolet.runtime.frontend.admission import ignore_load
from triolet.runtime.frontend.adoption import REBUILD_DEATHS_MAX, AdoptedStream, adopt_streams
from triolet.runtime.frontend.generation import GenerationStream
from triolet.runtime.runtime import Runtime

from ..journal.making import note, open_noted

PARAMS: dict[str, Any] = {"max_tokens": 40, "seed": 7, "temperature": 0.8, "ignore_eos": True}
WINDOW_TOKENS = 8
KINDS: dict[str, SamplingParams] = {
    "plain": SamplingParams(**PARAMS),
    "logprobs": SamplingParams(**PARAMS, logprobs=2, prompt_logprobs=1),
    "stop strings": SamplingParams(**PARAMS, stop=("never said", "\u2603")),
    "choices": SamplingParams(**PARAMS, n=2, logprobs=0),
}


@asynccontextmanager
async def open_journaled(folder: pathlib.Path, engines: int = 1) -> AsyncIterator[Bed]:
    """Engines pause soon where nothing is read."""
    async with open_bed(folder, engines=engines, window_tokens=WINDOW_TOKENS) as bed:
        bed.client.journal = open_noted(NotedMemory.fresh(2**20), term=1)
        yield bed


@asynccontextmanager
async def begun(bed: Bed, kinds: dict[str, SamplingParams], **options: Any) -> AsyncIterator[None]:
    """These streams, at the end of their credit; their readers have taken nothing."""

    async def hold(name: str, params: SamplingParams) -> None:
        noted = note(name, is_resumable=options.pop("is_resumable", True))
        opened = bed.frontend.generate(name, params, request_id=name, note=noted, **options)
        async with opened:
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for name, params in kinds.items():
            nursery.start_soon(hold, name, params)
        entries = bed.client.ledger._entries
        count = sum(params.n for params in kinds.values())
        with trio.fail_after(20):
            while len(entries) < count or any(
                len(each.token_ids) < WINDOW_TOKENS for each in entries.values()
            ):
                await trio.lowlevel.checkpoint()
        yield
        nursery.cancel_scope.cancel("the test is over")


@asynccontextmanager
async def adopted(
    bed: Bed, term: int = 2, died_ns: int = 0, on_load: Callable[[], None] = ignore_load
) -> AsyncIterator[tuple[Runtime, dict[str, Any]]]:
    """The next life, with what it adopts by name."""
    bed.cut_off(bed.frontend)
    memory = bed.client.journal.writer.memory
    async with bed.open_successor(term, on_load=on_load) as successor:
        journal = successor.client.journal = open_noted(memory, term=term)
        streams = adopt_streams(successor, journal, died_ns)
        successor.client.ledger.check_invariants()
        successor.client.handle_rebuilt()
        yield successor, {stream.admission.name: stream for stream in streams}


async def read(stream: AdoptedStream) -> GenerationStream:
    async with stream.open() as generation:
        with trio.fail_after(20):
            return await generation.collect()


def seen(stream: GenerationStream) -> Any:
    texts = [choice.text for choice in stream.choices]
    logprobs = [choice.logprobs for choice in stream.choices]
    return stream.choices, texts, logprobs, stream.prompt_logprobs, stream.usage


async def test_the_engine_that_a_client_named_is_still_its_own(null_folder: pathlib.Path) -> None:
    async with (
        open_journaled(null_folder, engines=2) as bed,
        begun(bed, {"plain": KINDS["plain"]}, engine=1),
        adopted(bed) as (successor, streams),
    ):
        (entry,) = successor.client.ledger.entries()
        assert entry.request.engine == 1
        assert entry.is_at_home
        assert len((await read(streams["plain"])).token_ids) == 40


async def test_every_kind_of_stream_goes_on_as_if_nothing_had_happened(
    null_folder: pathlib.Path,
) -> None:
    async with open_journaled(null_folder) as bed:
        wanted = {
            name: seen(await bed.answer(name, params, cache_salt="undisturbed"))
            for name, params in KINDS.items()
        }
        async with begun(bed, KINDS), adopted(bed) as (successor, streams):
            assert successor.admission.active_requests == 5
            for name in KINDS:
                assert seen(await read(streams[name])) == wanted[name], name
            assert len(successor.client.ledger) == 0
            counted = sum(answer[-1].output_tokens for answer in wanted.values())
            assert successor.statistics().frontend.output_tokens_total == counted
            assert successor.admission.active_requests == successor.admission.queued_tokens == 0
            await bed.wait_quiet()


async def test_old_tokens_with_logprobs_are_one_output(null_folder: pathlib.Path) -> None:
    """An output for each would be most of what a successor does before it is ready."""
    kinds = {"logprobs": KINDS["logprobs"]}
    async with (
        open_journaled(null_folder) as bed,
        begun(bed, kinds),
        adopted(bed) as (_, streams),
    ):
        (flow,) = streams["logprobs"].generation.flows
        (output,) = flow.collector._waiting
        assert len(output.token_ids) == len(output.logprobs) == WINDOW_TOKENS


async def test_ends_of_adopted_streams_are_reported_to_a_later_owner(
    null_folder: pathlib.Path,
) -> None:
    """Or a drain waits for streams that have ended, as the last report had them."""
    reported: list[int] = []
    async with (
        open_journaled(null_folder) as bed,
        begun(bed, KINDS),
        adopted(bed, on_load=lambda: reported.append(successor.admission.active_requests)) as (
            successor,
            streams,
        ),
    ):
        for stream in streams.values():
            await read(stream)
    assert len(reported) == len(KINDS)
    assert reported[-1] == 0


async def test_streams_are_silent_since_the_life_before_ended(null_folder: pathlib.Path) -> None:
    async with open_journaled(null_folder) as bed:
        died_ns = time.monotonic_ns() - 3_000_000_000
        async with (
            begun(bed, {"plain": KINDS["plain"]}),
            adopted(bed, died_ns=died_ns) as (successor, streams),
        ):
            await read(streams["plain"])
            gaps = successor.client.ledger.latencies.gaps_of_frontends
            assert sum(gaps.counts) == 1
            assert gaps.sum >= 3.0


async def test_streams_of_an_engine_that_died_meanwhile_go_on_at_another(
    null_folder: pathlib.Path,
) -> None:
    kinds = {"plain": KINDS["plain"], "logprobs": KINDS["logprobs"]}
    async with open_journaled(null_folder, engines=2) as bed:
        wanted = {
            name: seen(await bed.answer(name, params, cache_salt="x"))
            for name, params in kinds.items()
        }
        async with begun(bed, kinds):
            bed.directory.handle_gone(0, "was killed by SIGKILL")
            async with adopted(bed) as (_, streams):
                for name in kinds:
                    assert seen(await read(streams[name]))[:3] == wanted[name][:3]


async def test_what_ended_is_read_again_and_what_cannot_be_resumed_ends(
    null_folder: pathlib.Path,
) -> None:
    async with open_journaled(null_folder) as bed:
        params = KINDS["plain"]
        whole = await bed.answer("one", params, request_id="one", note=note("one"))
        bed.client.journal.end("one", b"its end")
        async with (
            begun(bed, {"two": params}, is_resumable=False),
            adopted(bed) as (successor, streams),
        ):
            assert list(streams) == ["one"]
            assert streams["one"].said == b"its end"
            assert not streams["one"]._flows, "made when it is read"
            assert seen(await read(streams["one"]))[:2] == seen(whole)[:2]
            counts = successor.statistics().frontend
            assert counts.prompt_tokens_total == counts.output_tokens_total == 0, "counted before"
            assert len(successor.client.ledger) == 0
            await bed.wait_quiet()


async def test_who_comes_back_learns_again_from_where_on_tokens_are_others(
    null_folder: pathlib.Path,
) -> None:
    async with open_journaled(null_folder) as bed, begun(bed, KINDS):
        bed.cut_off(bed.frontend)
        places = dict.fromkeys(KINDS, 3) | {"plain": WINDOW_TOKENS}  # behind what has come
        journal = open_noted(bed.client.journal.writer.memory, term=2)
        for stream in journal.streams():
            stream.choices[-1].numerics.inexact_from = places[stream.admission.name]
        async with bed.open_successor(2) as successor:
            successor.client.journal = journal
            streams = adopt_streams(successor, journal)
            successor.client.handle_rebuilt()
            for each in streams:
                *others, last = (await read(each)).choices
                assert last.inexact_from == places[each.admission.name], each.admission.name
                assert all(other.inexact_from is None for other in others)


async def test_the_credit_that_a_client_gave_is_its_own_again(null_folder: pathlib.Path) -> None:
    async with (
        open_journaled(null_folder) as bed,
        begun(bed, {"plain": KINDS["plain"]}, credit=12),
        adopted(bed) as (_, streams),
        streams["plain"].open() as stream,
    ):
        with trio.fail_after(20):
            while stream.output_tokens < 12:
                await stream.__anext__()
            await bed.settle()
            assert stream.take_nowait() is None
            stream.grant(100)
            await stream.collect()
        assert stream.finish_reason is FinishReason.LENGTH


async def test_a_stream_that_ended_two_lives_is_left_alone(null_folder: pathlib.Path) -> None:
    async with open_journaled(null_folder) as bed, begun(bed, {"plain": KINDS["plain"]}):
        bed.cut_off(bed.frontend)
        memory = bed.client.journal.writer.memory
        for term in range(2, 2 + REBUILD_DEATHS_MAX):
            open_noted(memory, term=term).note_rebuilding("plain")
        async with bed.open_successor(9) as successor:
            (stream,) = adopt_streams(successor, open_noted(memory, term=9))
            assert stream.generation is None
            successor.client.handle_rebuilt()
            await bed.wait_quiet()
            stream.forget()


async def test_a_stream_whose_end_ends_lives_as_well_is_forgotten(
    null_folder: pathlib.Path,
) -> None:
    async with open_journaled(null_folder) as bed, begun(bed, {"plain": KINDS["plain"]}):
        bed.cut_off(bed.frontend)
        memory = bed.client.journal.writer.memory
        for term in range(2, 2 + 2 * REBUILD_DEATHS_MAX):
            open_noted(memory, term=term).note_rebuilding("plain")
        async with bed.open_successor(9) as successor:
            assert adopt_streams(successor, open_noted(memory, term=9)) == []
            successor.client.handle_rebuilt()
            await bed.wait_quiet()
        assert open_noted(memory, term=10).streams() == []


async def test_what_an_earlier_boot_of_the_machine_has_admitted_is_as_old_as_its_adoption(
    null_folder: pathlib.Path,
) -> None:
    async with open_journaled(null_folder) as bed:
        bed.client.clock_ns = lambda: 2**62
        async with begun(bed, {"plain": KINDS["plain"]}), adopted(bed) as (successor, streams):
            (entry,) = successor.client.ledger._entries.values()
            assert entry.request.admitted_ns <= time.monotonic_ns()
            assert streams["plain"].admitted_at <= trio.current_time()
            await read(streams["plain"])
