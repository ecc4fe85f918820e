"""The use of a frontend and an engine in one process: their tasks cancelled in mid-stream."""

import pathlib

import attrs

from triolet.engine.messages import Utility
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.fuzz.doubles.bed import open_bed
from triolet.tests.cancellation.named_steps import DEADLINE_S, CancelAtStep

# Which of several tasks of one name: the frontend's are further out in the tree than the engine's.
ENGINE, FRONTEND = -1, 0
PARAMS = SamplingParams(max_tokens=6, seed=7, ignore_eos=True)
FORMED = attrs.evolve(PARAMS, structured_outputs=StructuredOutputs.regex("[a-z]*"))
# Less than a stream has, so that it cannot end before its link is cut.
WINDOW_TOKENS = 2


async def use_bed(folder: pathlib.Path, steps: CancelAtStep) -> None:
    """All that a frontend does: streams, aborts, a lost link, questions."""
    steps.held = steps.end == ENGINE
    async with open_bed(folder, window_tokens=WINDOW_TOKENS) as bed:
        steps.held = False
        (peer,) = bed.client.balancer.engines
        async with bed.frontend.generate("hello world", PARAMS) as stream:
            await stream.__anext__()
            await bed.client.call_utility(peer, Utility.TASK_TREE, timeout_s=DEADLINE_S)
            bed.hub.links.handle_broken(peer, 1, "the test breaks it")
            await stream.collect()
        async with bed.frontend.generate("hello", PARAMS) as stream:
            await stream.__anext__()
        async with bed.frontend.generate("hello", FORMED) as stream:
            await stream.collect()
        await bed.wait_quiet()
        assert bed.client.ledger.in_flight(peer) == 0
        await steps.finish()
