"""A request under a grammar whose engine dies: the stream goes on with the same tokens, and valid.

The bundled model, so that logits count and not only the mask; the engine that takes over has to
bring the grammar to where the first one was, by the tokens that were told.
"""

import functools
import json
import pathlib
from typing import Any

import pytest

from triolet.engine.kernels.library import native_fault
from triolet.engine.messages import FinishReason
from triolet.engine.model.bundled import bundled_model_folder
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.fuzz.doubles.bed import open_bed
from triolet.runtime.frontend.ledger_entry import EngineGonePolicy

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 8, "maxLength": 24},
        "legs": {"type": "integer", "minimum": 0, "maximum": 99},
        "friends": {"type": "array", "items": {"enum": ["fox", "hen"]}, "minItems": 3},
    },
    "required": ["name", "legs", "friends"],
    "additionalProperties": False,
}
PARAMS = SamplingParams(
    temperature=1.0, seed=5, max_tokens=200, structured_outputs=StructuredOutputs.json(SCHEMA)
)
ENGINE: dict[str, Any] = {
    "executor": "torch" if native_fault() else "native",
    "threads": 1,
    "kv_blocks": 64,
    "max_num_seqs": 4,
}
open_two = functools.partial(
    open_bed, pathlib.Path(bundled_model_folder()), engines=2, window_tokens=4, **ENGINE
)


@pytest.mark.slow
async def test_a_form_is_the_same_wherever_its_engine_died() -> None:
    async with open_two() as bed:
        async with bed.frontend.generate("The fox", PARAMS) as stream:
            await stream.collect()
        alone = stream.token_ids
        assert stream.finish_reason is FinishReason.STOP
        found = json.loads(stream.text)
    assert found.keys() == SCHEMA["properties"].keys()
    assert len(found["friends"]) >= 3
    assert len(alone) > 12, "there is something to cut"
    for cut in (1, len(alone) // 2, len(alone) - 5):
        async with open_two() as bed:
            bed.client.ledger.engine_gone_policy = EngineGonePolicy.REPLAY
            async with bed.frontend.generate("The fox", PARAMS) as stream:
                while len(stream.token_ids) < cut:
                    await stream.__anext__()
                ranks = range(len(bed.servers))
                [lost] = [rank for rank in ranks if bed.servers[rank].core.unfinished_count()]
                bed.lose_engine(lost)
                await stream.collect()
            assert bed.frontend.statistics().frontend.requests_replayed_total == 1
        assert stream.token_ids == alone, f"cut after {cut}"
        assert json.loads(stream.text) == found
