"""One call in front of everything: text out, stop strings, refusals, accounts."""

import math
import pathlib
from typing import Any

import attrs
import pytest
import trio

from triolet.engine.errors import (
    EngineDraining,
    EngineError,
    InvalidParameter,
    InvalidRequest,
    PromptTooLong,
)
from triolet.engine.messages import (
    AddRequest,
    FinishReason,
    RequestEvent,
    RequestEventKind,
    RequestOutput,
)
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.doubles.bed import Bed, open_bed
from triolet.runtime.config import ReplaySettings
from triolet.runtime.errors import ProcessingFailed, PromptRefused, RequestFailed
from triolet.runtime.frontend.frontend import (
    CHOICE_TOKENS_MAX,
    split_choices,
)
from triolet.runtime.frontend.request_flow import error_of
from triolet.transports.array import Array

PARAMS = SamplingParams(max_tokens=16, seed=3, ignore_eos=True)


async def test_pieces_add_up_to_the_whole_text(bed: Bed) -> None:
    async with bed.frontend.generate("the cat", PARAMS) as stream:
        pieces = [output async for output in stream]
    assert "".join(piece.text for piece in pieces) == stream.text
    assert [piece.token_count for piece in pieces][-1] == 16
    assert stream.finish_reason is FinishReason.LENGTH
    assert stream.usage.output_tokens == 16
    tokenizer = bed.frontend.inputs.tokenizer
    assert tokenizer.decode(stream.token_ids) == stream.text


async def test_a_stop_string_ends_the_request_here_and_in_the_engine(bed: Bed) -> None:
    async with bed.frontend.generate("the cat", PARAMS) as stream:
        whole = (await stream.collect()).text
    stop = whole[len(whole) // 2 : len(whole) // 2 + 2]
    params = SamplingParams(max_tokens=16, seed=3, ignore_eos=True, stop=[stop])
    stream = await bed.answer("the cat", params)
    assert stream.text == whole[: whole.index(stop)]
    assert (stream.finish_reason, stream.stop_reason) == (FinishReason.STOP, stop)
    await bed.wait_quiet()


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_with_credit_gets_what_it_grants(bed: Bed, streaming: bool) -> None:
    opened = bed.frontend.generate("the cat", PARAMS, streaming=streaming, credit=3)
    async with opened as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.collect)
        while bed.servers[0].core.statistics().paused == 0:
            await trio.lowlevel.checkpoint()
        assert bed.servers[0].core.statistics().output_tokens == 3
        stream.grant(2)
        while bed.servers[0].core.statistics().output_tokens < 5:
            await trio.lowlevel.checkpoint()
        await bed.answer("another", PARAMS)
        assert bed.servers[0].core.statistics().output_tokens == 5 + 16
        stream.grant(100)
    assert len(stream.token_ids) == 16
    await bed.wait_quiet()


async def test_tokens_that_do_not_become_text_fail_their_request_alone(bed: Bed) -> None:
    table = bed.frontend.inputs.tokenizer.table(skip_special_tokens=True)
    async with bed.frontend.generate("the cat", PARAMS, credit=1) as stream:
        await anext(stream)
        data: list[Any] = table.data
        whole = list(data)
        table.texts.clear()
        data[:] = ["no bytes"] * len(whole)
        stream.grant(15)
        with pytest.raises(ProcessingFailed, match="TypeError"):
            await stream.collect()
        data[:] = whole
    await bed.wait_quiet()
    async with bed.frontend.generate("the cat", PARAMS) as stream:
        assert len((await stream.collect()).token_ids) == 16


async def test_tokens_that_may_wait_come_together(null_folder: pathlib.Path) -> None:
    async def pieces(params: SamplingParams, deadline_s: float = math.inf) -> list[int]:
        opened = bed.frontend.generate("the cat", params, merge_s=9.0, deadline_s=deadline_s)
        async with opened as stream:
            return [len(output.token_ids) async for output in stream]

    async with open_bed(null_folder) as bed:
        told = await pieces(PARAMS)
        assert sum(told) == 16
        assert len(told) <= 3, "the first, and the rest; more only where a window happens to end"
        # Who must know each token here is told of each; the reader merges some of them.
        assert len(await pieces(attrs.evolve(PARAMS, stop=("no such text",)))) > 4
        assert len(await pieces(PARAMS, deadline_s=60.0)) > 4


async def test_who_asks_is_told_of_its_place_in_the_queue(null_folder: pathlib.Path) -> None:
    async with open_bed(null_folder, max_num_seqs=1) as bed:
        long = SamplingParams(max_tokens=400, seed=3, ignore_eos=True)
        async with bed.frontend.generate("the cat", long) as first:
            await first.__anext__()
            async with bed.frontend.generate("the dog", PARAMS, events=True) as stream:
                queued = await stream.__anext__()
                assert queued.events == (RequestEvent(RequestEventKind.QUEUED, 0),)
                assert (queued.text, queued.token_ids, queued.token_count) == ("", [], 0)
                await first.collect()
                told = [event for output in [o async for o in stream] for event in output.events]
        assert told == [RequestEvent(RequestEventKind.SCHEDULED)]
        assert len(stream.token_ids) == 16


async def test_refusals_name_the_fault_and_charge_nothing(bed: Bed) -> None:
    with pytest.raises(PromptTooLong):
        async with bed.frontend.generate([9] * 600, PARAMS):
            pytest.fail("it was admitted")
    with pytest.raises(InvalidParameter, match="token ids"):
        async with bed.frontend.generate([5000], PARAMS):
            pytest.fail("it was admitted")
    counts = bed.frontend.statistics().frontend
    assert (counts.requests_active, counts.queued_tokens) == (0, 0)


async def test_an_error_of_the_engine_fails_the_request_alone(bed: Bed) -> None:
    bed.client.ledger.replays.settings = ReplaySettings(replay_wait_s=0.0)
    bed.servers[0].core.start_drain()
    async with bed.frontend.generate("the cat", PARAMS) as stream:
        with pytest.raises(EngineDraining):
            await stream.collect()
    assert bed.frontend.statistics().frontend.requests_failed_total == 1


def say(bed: Bed, request_id: str, token_ids: list[int], **more: Any) -> None:
    """As if its engine had said this next of the request."""
    entry = bed.client.ledger.get(request_id)
    output = RequestOutput(
        request_id=request_id,
        attempt=entry.attempt,
        first_index=len(entry.token_ids),
        token_ids=token_ids,
        **more,
    )
    entry.token_ids.extend(token_ids)
    bed.client.deliver(entry, output)


async def test_tokens_that_come_with_an_error_are_told_before_it(bed: Bed) -> None:
    alone = SamplingParams(max_tokens=400, seed=3, ignore_eos=True)
    async with bed.frontend.generate("the cat", alone, credit=2) as stream:
        while len(stream.token_ids) < 2:
            await anext(stream)
        reason = FinishReason.ERROR
        say(bed, stream.request_id, [5, 6], finish_reason=reason, error="the row failed")
        with pytest.raises(RequestFailed, match="the row failed"):
            await stream.collect()
        assert stream.token_ids[2:] == [5, 6]
    await bed.wait_quiet()


async def test_what_comes_with_later_tokens_is_told_with_them(bed: Bed) -> None:
    alone = SamplingParams(max_tokens=400, seed=3, ignore_eos=True)
    async with bed.frontend.generate("the cat", alone, credit=2) as stream:
        while len(stream.token_ids) < 2:
            await anext(stream)
        resumed = RequestEvent(RequestEventKind.RESUMED)
        say(bed, stream.request_id, [5, 6])
        say(bed, stream.request_id, [7], events=(resumed,))
        say(bed, stream.request_id, [8])
        before, after = stream.take_nowait(), stream.take_nowait()
        assert before is not None
        assert after is not None, "events stay behind the tokens that came before them"
        assert (before.token_ids, after.token_ids) == ([5, 6], [7, 8])
        assert (after.events, after.token_count) == ((resumed,), 6)
    await bed.wait_quiet()


async def test_cached_tokens_are_those_of_the_first_attempt(null_folder: pathlib.Path) -> None:
    async with open_bed(null_folder, engines=2) as bed:
        prompt = list(range(9, 109))
        async with bed.frontend.generate(prompt, PARAMS, credit=1) as stream:
            await stream.__anext__()
            (first,) = [rank for rank in bed.servers if bed.servers[rank].core.unfinished_count()]
            await bed.answer(prompt, PARAMS)
            bed.lose_engine(first)
            stream.grant(100)
            await stream.collect()
        assert bed.servers[1 - first].core.statistics().prefix_hits > 0, "the replay found blocks"
        assert stream.usage.cached_tokens == 0


async def test_what_the_engine_refuses_is_the_clients_fault_and_said_in_its_words(bed: Bed) -> None:
    async with bed.frontend.generate("the cat", PARAMS, principal="x" * 2000) as stream:
        with pytest.raises(InvalidParameter) as caught:
            await stream.collect()
    assert caught.value.parameter == "principal"
    assert str(caught.value) == "principal must have at most 1024 characters"
    core = bed.servers[0].core
    core.limits = attrs.evolve(core.limits, max_model_len=2)  # less than it told us
    async with bed.frontend.generate([9, 9], PARAMS) as stream:
        with pytest.raises(PromptRefused) as refused:
            await stream.collect()
    assert str(refused.value) == str(PromptTooLong(2, 2))


@pytest.mark.parametrize(
    ("code", "kind"),
    [("invalid_request", InvalidRequest), ("step_failed", RequestFailed), ("", RequestFailed)],
)
def test_codes_of_an_engine_that_ended_a_request(code: str, kind: type[EngineError]) -> None:
    output = RequestOutput(
        request_id="r",
        attempt=0,
        first_index=0,
        token_ids=[],
        finish_reason=FinishReason.ERROR,
        error="it is odd",
        error_code=code,
    )
    error = error_of("r", output)
    assert type(error) is kind
    assert "it is odd" in str(error)


async def test_accounts_at_the_end(bed: Bed) -> None:
    await bed.answer("the cat", PARAMS)
    async with bed.frontend.generate("the cat", PARAMS):
        pass
    while bed.servers[0].core.statistics().requests_aborted == 0:
        await trio.lowlevel.checkpoint()
    await bed.wait_quiet()
    counts = bed.frontend.statistics().frontend
    assert counts.requests_total == 2
    assert counts.requests_finished_total == 1
    assert counts.requests_aborted_total == 1
    assert counts.output_tokens_total == 16
    assert counts.requests_active == 0
    (engine,) = await bed.frontend.engine_statistics()
    assert engine.kv_blocks_free == engine.kv_blocks


@pytest.mark.parametrize("asked", [None, 300])
async def test_how_long_a_stream_may_be_does_not_depend_on_its_engine(
    null_folder: pathlib.Path, asked: int | None
) -> None:
    """Engines differ, as in KV memory; one that took a stream over must end it as the first."""
    params = SamplingParams(max_tokens=asked, min_tokens=9, seed=3, ignore_eos=True)
    async with open_bed(null_folder, engines=2) as bed:

        async def tokens() -> int:
            stream = await bed.answer([5] * 4, params)
            assert stream.finish_reason is FinishReason.LENGTH
            return len(stream.token_ids)

        alone = await tokens()
        ready = bed.client.engines.membership.engines[1].ready
        shorter = attrs.evolve(ready, max_model_len=12)
        bed.client.apply_membership(bed.directory.handle_ready(1, shorter))
        assert [await tokens() for _ in range(2)] == [8, 8]
        bed.lose_engine(1)
        assert await tokens() == 8, "its successor may take the stream over"
        bed.client.apply_membership(bed.directory.handle_failed(1))
        assert await tokens() == alone


ADD = AddRequest(
    request_id="r",
    attempt=0,
    prompt_token_ids=[1, 2, 3],
    sampling=SamplingParams(seed=5, prompt_logprobs=1, logprobs=2),
)


def test_one_choice_is_the_request_itself() -> None:
    assert split_choices(ADD) == [ADD]


def test_choices_differ_in_number_and_name_alone() -> None:
    whole = attrs.evolve(ADD, sampling=attrs.evolve(ADD.sampling, n=3))
    choices = split_choices(whole)
    assert [choice.request_id for choice in choices] == ["r#0", "r#1", "r#2"]
    assert [choice.choice for choice in choices] == [0, 1, 2]
    assert {choice.parent for choice in choices} == {"r"}
    assert [choice.sampling.prompt_logprobs for choice in choices] == [1, None, None]
    for choice in choices:
        assert (choice.sampling.seed, choice.sampling.logprobs) == (5, 2)
        again = attrs.evolve(choice, request_id="r", choice=0, parent="")
        assert attrs.evolve(again, sampling=whole.sampling) == whole


def test_too_many_bytes_of_embeddings_are_refused() -> None:
    array = Array("float32", (3, 2**19), bytes(3 * 2**21))
    sampling = SamplingParams(seed=1, n=8)
    fits = attrs.evolve(ADD, sampling=sampling, prompt_embeds=array)
    assert [one.prompt_embeds for one in split_choices(fits)] == [array] * 8
    with pytest.raises(InvalidParameter, match="n must be at most 8 for embeddings of 6291456"):
        split_choices(attrs.evolve(fits, sampling=attrs.evolve(sampling, n=9)))


@pytest.mark.parametrize("allowed", [None, tuple(range(10))])
def test_too_much_together_is_refused(allowed: tuple[int, ...] | None) -> None:
    sampling = SamplingParams(seed=1, n=128, allowed_token_ids=allowed)
    tokens = CHOICE_TOKENS_MAX // 128 - len(allowed or ())
    fits = attrs.evolve(ADD, sampling=sampling, prompt_token_ids=[1] * tokens)
    assert len(split_choices(fits)) == 128
    with pytest.raises(InvalidParameter, match="n must be at most 127"):
        split_choices(attrs.evolve(fits, prompt_token_ids=[1] * (tokens + 1)))
