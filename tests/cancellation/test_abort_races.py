"""Aborts that race with everything a request goes through, over a whole frontend and an engine.

Whenever the abort comes (before the ADD is sent, before it arrives, in the prefill, in the step
that finishes, twice, for what nobody knows) and whatever happens to a frame on its way: all blocks
are free afterwards, no floor has any state of the request, another request's tokens are exact.
"""

import pathlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import trio
import trio.testing

from triolet.engine.messages import AbortRequests, RequestKey
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.doubles.bed import Bed, open_bed
from triolet.fuzz.doubles.link_faults import FaultKind, NthFault
from triolet.runtime.errors import NoEngine
from triolet.tests.checkpoints import cancel_at_nth_checkpoint
from triolet.tests.contracts.engines import write_sizes
from triolet.tests.runtime.model_folders import byte_level_tokenizer, write_folder
from triolet.transports.links.link import Side

TOKENS = 6
PARAMS = SamplingParams(max_tokens=TOKENS, seed=7, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=400, seed=7, ignore_eos=True)
LONG = "the cat sat on the mat " * 8
# Several steps for the long prompt's prefill.
STEP_TOKENS = 16
# Of one exchange on one link; it has fewer frames.
FRAMES_MAX = 60


@pytest.fixture(scope="session")
def null_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A tokenizer, and sizes for the null executor."""
    return write_sizes(write_folder(tmp_path_factory.mktemp("aborts"), byte_level_tokenizer()))


async def check_nothing_left(bed: Bed) -> None:
    """Quiet, and another request is served as ever."""
    await bed.wait_quiet()
    assert bed.frontend.admission.active_requests == 0
    assert sum(map(bed.client.ledger.placed.count, bed.client.balancer.engines)) == 0
    for server in bed.servers.values():
        server.core.check_invariants()
        assert server.core.unfinished_count() == 0


async def tokens_of(bed: Bed, prompt: str = "somebody else") -> list[int]:
    """A request from its beginning to its end."""
    async with bed.frontend.generate(prompt, PARAMS) as stream:
        await stream.collect()
        return list(stream.token_ids)


async def leave_after_a_token(bed: Bed) -> None:
    """A request that its client leaves."""
    async with bed.frontend.generate("hello world", PARAMS) as stream:
        await stream.__anext__()


T = TypeVar("T")


async def until_linked(bed: Bed, use: Callable[[Bed], Awaitable[T]]) -> T:
    """Again while the link is down, as `NoEngine` tells clients to."""
    while True:
        await bed.wait_engines(1)
        try:
            return await use(bed)
        except NoEngine:
            continue


async def test_cancelled_at_every_checkpoint_of_its_caller(null_folder: pathlib.Path) -> None:
    """Entering (a thread tokenises), reading and leaving: before the ADD is sent, before it
    arrives, in the prefill, in decoding, at the end."""
    async with open_bed(
        null_folder, max_num_batched_tokens=STEP_TOKENS, inline_characters_max=0
    ) as bed:
        expected = await tokens_of(bed)
        entered = 0

        async def use() -> None:
            nonlocal entered
            async with bed.frontend.generate(LONG, PARAMS) as stream:
                entered += 1
                async for _ in stream:
                    pass

        n, reached = 0, True
        while reached:
            n += 1
            reached = await cancel_at_nth_checkpoint(use, n)
            await check_nothing_left(bed)
        count = n - 1
        assert count > 3, "there are checkpoints before the ADD, before its tokens, between them"
        assert 0 < entered < count + 1, "some were cancelled before they had entered"
        assert await tokens_of(bed) == expected


async def test_left_before_its_add_has_arrived(null_folder: pathlib.Path) -> None:
    async with open_bed(null_folder) as bed:
        (server,) = bed.servers.values()
        before = server.core.statistics()
        async with bed.frontend.generate("hello", PARAMS):
            assert server.core.unfinished_count() == 0, "it is on its way"
        assert server.core.unfinished_count() == 0
        await trio.testing.wait_all_tasks_blocked()
        await check_nothing_left(bed)
        after = server.core.statistics()
        computed = after.output_tokens - before.output_tokens
        assert computed <= 2, "a step may begin between the two messages, and bring its token"
        assert after.aborts_unknown == before.aborts_unknown


async def test_left_while_prefilling(null_folder: pathlib.Path) -> None:
    async with open_bed(null_folder, max_num_batched_tokens=STEP_TOKENS) as bed:
        (server,) = bed.servers.values()
        other: list[int] = []
        expected = await tokens_of(bed)

        async def run_other() -> None:
            other.extend(await tokens_of(bed))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_other)
            async with bed.frontend.generate(LONG, PARAMS) as stream:
                assert len(stream.prompt_token_ids) > 4 * STEP_TOKENS
                before = server.core.statistics().step
                while server.core.statistics().step < before + 2:
                    await trio.lowlevel.checkpoint()
        assert other == expected
        assert stream.token_ids == []
        await check_nothing_left(bed)
        assert server.core.statistics().aborts_unknown == 0


@pytest.mark.parametrize("count", range(TOKENS + 1))
async def test_left_after_each_token_and_in_the_step_that_finishes(
    count: int, null_folder: pathlib.Path
) -> None:
    """With `TOKENS - 1` read, the step that brings the last one is in flight."""
    async with open_bed(null_folder) as bed:
        expected = await tokens_of(bed, "hello world")
        async with bed.frontend.generate("hello world", PARAMS) as stream:
            while len(stream.token_ids) < count:
                await stream.__anext__()
        assert stream.token_ids == expected[: len(stream.token_ids)]
        await check_nothing_left(bed)
        assert await tokens_of(bed, "hello world") == expected


async def test_twice_and_for_unknown_requests(null_folder: pathlib.Path) -> None:
    async with open_bed(null_folder) as bed:
        (server,), (peer,) = bed.servers.values(), bed.client.balancer.engines
        expected = await tokens_of(bed)
        # Longer than the engine can run ahead, in the thread of its steps, before an abort comes.
        async with bed.frontend.generate("hello world", ENDLESS) as stream:
            await stream.__anext__()
            sink = bed.client.ledger.get(stream.request_id).sink
            bed.client.abort(sink)
            bed.client.abort(sink)
        bed.client.abort(sink)
        assert server.core.statistics().aborts_unknown == 0, "the frontend knows what it sent"
        keys = [RequestKey("request-nobody", 0), RequestKey(stream.request_id, 0)]
        bed.hub.send(peer, AbortRequests(keys))
        await trio.testing.wait_all_tasks_blocked()
        assert server.core.statistics().aborts_unknown == 2, "counted, and nothing else"
        await check_nothing_left(bed)
        assert await tokens_of(bed) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", FaultKind)
@pytest.mark.parametrize("receiver", Side)
async def test_whatever_happens_to_a_frame_on_its_way(
    receiver: Side,
    kind: FaultKind,
    null_folder: pathlib.Path,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The n-th frame is dropped, doubled or delayed while one request is aborted and another
    runs, for every n."""
    for n in range(1, FRAMES_MAX):
        fault = NthFault(kind, receiver, n)
        async with open_bed(null_folder, fault) as bed:
            await until_linked(bed, leave_after_a_token)
            other = await until_linked(bed, tokens_of)
            assert len(other) == TOKENS
            await check_nothing_left(bed)
        if not fault.reached:
            return
    pytest.fail("the exchange has no end")
