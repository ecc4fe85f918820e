"""The bed carries a request, and can lose an engine."""

import pytest

from triolet.engine.errors import EngineDied
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.doubles.bed import open_bed
from triolet.fuzz.doubles.served import BUNDLED


@pytest.mark.slow
async def test_a_request_goes_through_and_leaves_nothing() -> None:
    async with open_bed(BUNDLED) as bed:
        async with bed.frontend.generate("hi", SamplingParams(max_tokens=3)) as stream:
            await stream.collect()
        assert len(stream.token_ids) <= 3
        await bed.wait_quiet()


@pytest.mark.slow
async def test_an_engine_is_lost() -> None:
    params = SamplingParams(ignore_eos=True)
    async with open_bed(BUNDLED) as bed, bed.frontend.generate("hi", params) as stream:
        await anext(stream)
        bed.lose_engine(0)
        with pytest.raises(EngineDied):
            await stream.collect()
