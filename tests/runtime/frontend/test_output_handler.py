"""The output handler yields between slices and never waits for a client."""

import pathlib

import trio

from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.doubles.bed import open_bed
from triolet.runtime.frontend.core_client import SLICE_OUTPUTS


async def test_a_client_that_never_reads_delays_nobody(null_folder: pathlib.Path) -> None:
    params = SamplingParams(max_tokens=20, seed=1, ignore_eos=True)
    async with open_bed(null_folder) as bed, bed.frontend.generate("a b", params) as idle:
        async with bed.frontend.generate("c d", params) as stream:
            assert len((await stream.collect()).token_ids) == 20
        assert idle.token_ids == []


async def test_many_outputs_at_once_leave_room_for_others(null_folder: pathlib.Path) -> None:
    """More requests than a slice holds end whole, and a task beside them makes progress."""
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await trio.lowlevel.checkpoint()

    requests = SLICE_OUTPUTS + 20
    params = SamplingParams(max_tokens=3, seed=1, ignore_eos=True)
    lengths: list[int] = []
    async with open_bed(null_folder, max_num_seqs=requests) as bed:

        async def one() -> None:
            async with bed.frontend.generate("a b", params) as stream:
                lengths.append(len((await stream.collect()).token_ids))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(beat)
            async with trio.open_nursery() as streams:
                for _ in range(requests):
                    streams.start_soon(one)
            nursery.cancel_scope.cancel("all have ended")
    assert lengths == [3] * requests
    assert beats > 3
