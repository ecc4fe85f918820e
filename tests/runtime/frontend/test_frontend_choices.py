"""Several choices of one prompt, from one call: each whole, each ended by itself, counted once."""

import gc
import pathlib
import weakref

import attrs
import pytest
import trio

from triolet.engine.errors import InvalidParameter
from triolet.engine.messages import FinishReason
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.doubles.bed import Bed, open_bed
from triolet.runtime.errors import Overloaded

COUNT = 3
PARAMS = SamplingParams(n=COUNT, max_tokens=16, seed=3, ignore_eos=True)
LENGTH = FinishReason.LENGTH


async def answers(folder: pathlib.Path, params: SamplingParams = PARAMS) -> list[list[int]]:
    async with open_bed(folder) as bed, bed.frontend.generate("the cat", params) as stream:
        await stream.collect()
    return [choice.token_ids for choice in stream.choices]


@pytest.mark.parametrize("streaming", [True, False])
async def test_choices_are_whole_and_differ(null_folder: pathlib.Path, streaming: bool) -> None:
    texts = [""] * COUNT
    async with open_bed(null_folder) as bed:
        opened = bed.frontend.generate("the cat", PARAMS, streaming=streaming)
        async with opened as stream:
            async for output in stream:
                texts[output.index] += output.text
            await bed.wait_quiet()
        assert [choice.text for choice in stream.choices] == texts
        assert len({tuple(choice.token_ids) for choice in stream.choices}) == COUNT
        assert [choice.finish_reason for choice in stream.choices] == [LENGTH] * COUNT
        assert (stream.text, stream.token_ids) == (texts[0], stream.choices[0].token_ids)
        assert stream.usage.prompt_tokens == len(stream.prompt_token_ids)
        assert stream.usage.output_tokens == 16 * COUNT
        counts = bed.frontend.statistics().frontend
        assert (counts.requests_active, counts.queued_tokens, counts.requests_total) == (0, 0, 3)
        assert counts.prompt_tokens_total == len(stream.prompt_token_ids)
        assert counts.output_tokens_total == 16 * COUNT


async def test_the_first_choice_is_what_one_alone_is(null_folder: pathlib.Path) -> None:
    alone = await answers(null_folder, SamplingParams(max_tokens=16, seed=3, ignore_eos=True))
    assert (await answers(null_folder))[0] == alone[0]


async def test_a_stop_string_ends_its_choice_alone(bed: Bed) -> None:
    stream = await bed.answer("the cat", PARAMS)
    whole = [choice.text for choice in stream.choices]
    stop = next(
        whole[1][place : place + 2]
        for place in range(len(whole[1]))
        if not any(whole[1][place : place + 2] in other for other in (whole[0], whole[2]))
    )
    params = SamplingParams(n=COUNT, max_tokens=16, seed=3, ignore_eos=True, stop=[stop])
    stream = await bed.answer("the cat", params)
    assert [choice.stop_reason for choice in stream.choices] == [None, stop, None]
    assert stream.choices[1].text == whole[1][: whole[1].index(stop)]
    assert [stream.choices[i].text for i in (0, 2)] == [whole[0], whole[2]]
    await bed.wait_quiet()


async def test_one_choice_can_be_aborted_and_the_others_go_on(null_folder: pathlib.Path) -> None:
    wanted = await answers(null_folder)
    async with open_bed(null_folder) as bed:
        async with bed.frontend.generate("the cat", PARAMS) as stream:
            await stream.__anext__()
            stream.abort(1)
            stream.abort(1)
            await stream.collect()
            stream.abort(0)
        reasons = [choice.finish_reason for choice in stream.choices]
        assert reasons == [LENGTH, FinishReason.ABORT, LENGTH]
        cut = stream.choices[1].token_ids
        assert cut == wanted[1][: len(cut)]
        assert [stream.choices[i].token_ids for i in (0, 2)] == [wanted[0], wanted[2]]
        await bed.wait_quiet()


@pytest.mark.parametrize("count", [1, COUNT])
async def test_leaving_frees_all_of_them_without_the_collector(
    null_folder: pathlib.Path, count: int
) -> None:
    params = attrs.evolve(PARAMS, n=count)
    async with open_bed(null_folder) as bed:
        gc.disable()
        try:
            async with bed.frontend.generate("the cat", params) as stream:
                await stream.__anext__()
            await bed.wait_quiet()
            assert bed.frontend.statistics().frontend.requests_active == 0
            gone = weakref.ref(stream)
            del stream
            await trio.lowlevel.checkpoint()
            assert gone() is None
        finally:
            gc.enable()


async def test_each_choice_goes_on_where_its_engine_died(null_folder: pathlib.Path) -> None:
    wanted = await answers(null_folder)
    async with open_bed(null_folder, engines=2) as bed:
        async with bed.frontend.generate("the cat", PARAMS) as stream:
            await stream.__anext__()
            held = [rank for rank, server in bed.servers.items() if server.core.unfinished_count()]
            assert len(held) == 1, "choices share a prompt, so they share an engine"
            bed.lose_engine(held[0])
            await stream.collect()
        assert [choice.token_ids for choice in stream.choices] == wanted


async def test_credit_is_each_choices(bed: Bed) -> None:
    opened = bed.frontend.generate("the cat", PARAMS, credit=2)
    async with opened as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.collect)
        while bed.servers[0].core.statistics().paused < COUNT:
            await trio.lowlevel.checkpoint()
        assert bed.servers[0].core.statistics().output_tokens == 2 * COUNT
        stream.grant(14)
    assert stream.usage.output_tokens == 16 * COUNT


async def test_more_choices_than_there_is_room_for(bed: Bed) -> None:
    limits = bed.frontend.admission.limits
    object.__setattr__(limits, "active_requests_max", 4)
    async with bed.frontend.generate("the cat", PARAMS):
        with pytest.raises(Overloaded):
            async with bed.frontend.generate("the cat", PARAMS):
                pytest.fail("it was admitted")
    with pytest.raises(InvalidParameter, match="n must be at most 4"):
        async with bed.frontend.generate("the cat", SamplingParams(n=5)):
            pytest.fail("it was admitted")
    assert bed.frontend.statistics().frontend.requests_active == 0


@pytest.mark.parametrize("streaming", [True, False])
async def test_what_has_not_ended_by_its_deadline_ends(
    null_folder: pathlib.Path, mock_clock: trio.testing.MockClock, streaming: bool
) -> None:
    params = SamplingParams(n=2, max_tokens=400, seed=3, ignore_eos=True)
    async with open_bed(null_folder) as bed:
        # Without credit for more, they wait.
        opened = bed.frontend.generate(
            "the cat", params, streaming=streaming, credit=5, deadline_s=7
        )
        async with opened as stream, trio.open_nursery() as nursery:
            nursery.start_soon(stream.collect)
            while bed.servers[0].core.statistics().paused < 2:
                await trio.lowlevel.checkpoint()
            for _ in range(50):  # the last tokens are on their way
                await trio.lowlevel.checkpoint()
            mock_clock.jump(6.9)
            await trio.testing.wait_all_tasks_blocked()
            assert stream.finish_reason is None
            mock_clock.jump(0.2)
        reasons = [choice.finish_reason for choice in stream.choices]
        assert reasons == [FinishReason.DEADLINE] * 2
        assert [len(choice.token_ids) for choice in stream.choices] == [5, 5]
        await bed.wait_quiet()
