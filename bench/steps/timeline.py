"""Timeline of steps: records of engine and worker joined, and the run that makes them.

Who did what when, and what hid behind what. In the run some requests decode together, so that a
steady state is seen; real processes record their steps into a folder.
"""

import itertools
import math
import pathlib
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from ...engine.sampling_params import SamplingParams
from ...engine.step_recorder import RECORD, SUFFIX, Span
from ...runtime.events import OnEvent, ignore_event
from ...runtime.runtime import open_runtime
from ..options import TimelineOptions, Work
from ..serving.throughput import plain_token_ids, run_offline

# Spans of an engine's work; waiting is none.
ENGINE_WORK = (Span.SCHEDULE, Span.ENCODE, Span.SUBMIT, Span.DECODE, Span.APPLY, Span.DELIVER)
# Told in this order.
ORDER = (*ENGINE_WORK, Span.WAIT, Span.READ, Span.UNPACK, Span.COMPUTE, Span.SAMPLE, Span.ANSWER)
# Steps in flight, with some to spare.
_NEAR_STEPS = 4
_ENGINE, _WORKER = "engine", "worker"


@attrs.frozen
class SpanRecord:
    """Span of one process, as it was noted. Times in nanoseconds."""

    process: str
    span: Span
    step: int
    begin_ns: int
    end_ns: int


def read_records(folder: pathlib.Path) -> list[SpanRecord]:
    """Read the records of all processes of a run, in the order of each."""
    found = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        name = path.name.removesuffix(SUFFIX)
        for kind, step, begin, end in RECORD.iter_unpack(path.read_bytes()):
            if not end:
                break
            found.append(SpanRecord(name, Span(kind), step, begin, end))
    return found


@attrs.frozen
class TimelineEmpty(Exception):
    """No step was noted whole; there is nothing to show."""

    def __str__(self) -> str:
        return "no step was recorded whole: ask for more tokens"


@attrs.frozen
class Lane:
    """The spans of one process, in order of their beginnings."""

    name: str
    spans: list[SpanRecord]


@attrs.frozen(kw_only=True)
class StepFigures:
    """Medians over the steps of a window, microseconds. Names are those of the spans."""

    steps: int
    # Time between two steps' computing.
    period_us: float
    spans_us: dict[str, float]
    # The engine's work for a step, and how much of that lies within a worker's computing.
    engine_work_us: float
    engine_hidden_share: float
    # Idle time of the worker, from the end of a step's computing to the next one's.
    gap_us: float
    # Time that the worker computes, of all time.
    compute_share: float


@attrs.frozen(kw_only=True)
class Timeline:
    """Timeline of an engine and its first worker, from step `first` to step `last`."""

    first: int
    last: int
    lanes: list[Lane]
    figures: StepFigures

    def clip(self, first: int, last: int) -> "Timeline":
        """The same with the spans of these steps only; the figures stay."""
        lanes = [
            Lane(lane.name, [each for each in lane.spans if first <= each.step <= last])
            for lane in self.lanes
        ]
        return attrs.evolve(self, first=first, last=last, lanes=lanes)


def join_records(records: Sequence[SpanRecord], first: int = 0, last: int = 2**62) -> Timeline:
    """The timeline of steps `first` to `last`. Raises `TimelineEmpty`."""
    lanes = [_lane(records, kind, first, last) for kind in (_ENGINE, _WORKER)]
    engine, worker = lanes
    computed = [each for each in worker.spans if each.span is Span.COMPUTE]
    if len(computed) < 2 or not engine.spans:
        raise TimelineEmpty
    return Timeline(
        first=computed[0].step,
        last=computed[-1].step,
        lanes=lanes,
        figures=_figures(engine, worker, computed),
    )


def _lane(records: Sequence[SpanRecord], kind: str, first: int, last: int) -> Lane:
    """Lane of the first process of that kind, if there are several."""
    names = sorted({each.process for each in records if each.process.startswith(kind)})
    spans = [
        each
        for each in records
        if names and each.process == names[0] and first <= each.step <= last
    ]
    return Lane(kind, sorted(spans, key=lambda each: (each.begin_ns, -each.end_ns)))


def _figures(engine: Lane, worker: Lane, computed: list[SpanRecord]) -> StepFigures:
    steps = {each.step for each in computed}
    spans = [each for each in (*engine.spans, *worker.spans) if each.step in steps]
    work = [each for each in engine.spans if each.span in ENGINE_WORK and each.step in steps]
    by_step = {each.step: each for each in computed}
    hidden_ns = sum(overlap_ns(each, by_step) for each in work)
    work_ns = sum(map(duration_ns, work))
    whole_ns = computed[-1].begin_ns - computed[0].begin_ns
    return StepFigures(
        steps=len(steps),
        period_us=_median_us(b.begin_ns - a.begin_ns for a, b in itertools.pairwise(computed)),
        spans_us={
            span.name.lower(): _median_us(map(duration_ns, of_span))
            for span in ORDER
            if (of_span := [each for each in spans if each.span is span])
        },
        engine_work_us=work_ns / len(steps) / 1e3,
        engine_hidden_share=hidden_ns / work_ns if work_ns else math.nan,
        gap_us=_median_us(b.begin_ns - a.end_ns for a, b in itertools.pairwise(computed)),
        compute_share=sum(map(duration_ns, computed[:-1])) / whole_ns if whole_ns else math.nan,
    )


def duration_ns(record: SpanRecord) -> int:
    """How long it took."""
    return record.end_ns - record.begin_ns


def overlap_ns(record: SpanRecord, by_step: Mapping[int, SpanRecord]) -> int:
    """How much of a span lies within those of the steps around it; others are too far away."""
    near = range(record.step - _NEAR_STEPS, record.step + _NEAR_STEPS + 1)
    return sum(
        max(0, min(record.end_ns, other.end_ns) - max(record.begin_ns, other.begin_ns))
        for step in near
        if (other := by_step.get(step)) is not None
    )


def _median_us(values_ns: Iterable[int]) -> float:
    return statistics.median(values_ns) / 1e3


# Share of a run's steps in which all requests decode: prompts are over, none has ended.
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
    """Steps from the middle, for a picture."""
    middle = (timeline.first + timeline.last) // 2
    first = max(timeline.first, middle - count // 2)
    return timeline.clip(first, min(timeline.last, first + count - 1))
