"""`triolet bench timeline`: has real processes note their steps, and reads what they noted.

Some requests decode together, so that a steady state is seen. Must not know how it is drawn.
"""

import pathlib
import tempfile
from typing import Any

from ...engine.sampling_params import SamplingParams
from ...engine.step_recorder import read_records
from ...runtime.events import OnEvent, ignore_event
from ...runtime.runtime import open_runtime
from ..options import TimelineOptions
from ..prompts import Work
from ..serving.throughput import plain_token_ids, run_offline
from .timeline import Timeline, join_records

# Of the steps of a run, those in which all requests decode: prompts are over, none has ended.
_STEADY_FROM, _STEADY_TO = 0.5, 0.95
_WARM_UP_TOKENS = 8


async def record_timeline(
    model: str | None,
    options: TimelineOptions,
    *,
    engine: dict[str, Any],
    on_event: OnEvent = ignore_event,
) -> Timeline:
    """The steady steps of a run. Raises as `open_runtime` does, and `TimelineEmpty`."""
    work = Work(
        requests=options.running,
        prompt_min=options.prompt_tokens,
        prompt_max=options.prompt_tokens,
        tokens=options.tokens,
        seed=options.seed,
    )
    with tempfile.TemporaryDirectory(prefix="triolet-steps-") as name:
        folder = pathlib.Path(name)
        words = {**engine, "record_steps": name}
        words["max_num_seqs"] = max(options.running, words.get("max_num_seqs", 0))
        async with open_runtime(model, on_event=on_event, **words) as runtime:
            prompts = work.prompts(plain_token_ids(runtime))
            for salt, tokens in (("warm up", _WARM_UP_TOKENS), ("run", options.tokens)):
                begun = max((each.step for each in read_records(folder)), default=0)
                params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
                await run_offline(runtime, prompts, params, salt=salt)
        records = read_records(folder)
    steps = max((each.step for each in records), default=0) - begun
    first, last = (begun + int(steps * share) for share in (_STEADY_FROM, _STEADY_TO))
    return join_records(records, first, last)


def some_steps(timeline: Timeline, count: int) -> Timeline:
    """So many steps from the middle, for a picture."""
    middle = (timeline.first + timeline.last) // 2
    first = max(timeline.first, middle - count // 2)
    return timeline.clip(first, min(timeline.last, first + count - 1))
