"""Timing of an executor's steps beside the machine's floor, in turns, in one thread.

A round measures the machine's rates before and after every case, so that neighbours slow both: the
share is of the better of the two, round by round. The floor reads weights and cache from memory; a
model that fits in the processor's cache is quicker, and its share above one. *Call* is what the
executor says the forward pass took, *step* what a caller waits: with sampling and the answer.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from ...engine.config import EngineSettings
from ...engine.host import cores
from ...engine.model_config.config import load_model_config
from ...engine.worker.executors import make_executor
from ..load.measures import Series
from .machine import MachineFloor, Probe
from .step_driver import (
    GROWTH_TOKENS,
    ModelSizes,
    RowWork,
    StepDriver,
    StepWork,
    blocks_for,
    decode_rows,
    prefill_rows,
)

# Steps of a case: the first warms it up, the others are measured.
STEPS_MAX = GROWTH_TOKENS - 2
# A case takes about so long in a round, and at least so many steps.
CASE_S = 0.15
STEPS_MIN = 3
# Tries for the machine's rates between two cases, about 15 ms each.
PROBE_TRIES = 2


@attrs.frozen(kw_only=True)
class Case:
    """A step to be timed: rows that decode, and prompts beside them."""

    name: str
    decoding: list[RowWork] = attrs.field(factory=list)
    prefills: list[RowWork] = attrs.field(factory=list)

    def rows(self) -> list[RowWork]:
        """Rows of the step."""
        return [*self.decoding, *self.prefills]


@attrs.frozen(kw_only=True)
class CaseFigures:
    """Figures of a case: milliseconds of call and step (medians of rounds), and the floor's share
    of each.

    `least_ms` is the quickest call of all.
    """

    name: str
    tokens: int
    call_ms: Series
    step_ms: Series
    least_ms: float
    floor_ms: Series
    call_share: Series
    step_share: Series


@attrs.frozen(kw_only=True)
class KernelFigures:
    """Everything that was measured of one model with one number of threads."""

    executor: str
    threads: int
    machine_floors: list[MachineFloor]
    cases: list[CaseFigures]


def usual_cases(batches: Sequence[int], *, context: int, prefill: int, mixed: int) -> list[Case]:
    """Decode steps of these batches, one prompt, and a part of a prompt beside 32 decodes."""
    cases = [Case(name=f"decode {b}", decoding=decode_rows(b, context)) for b in batches]
    cases.append(Case(name=f"prefill {prefill}", prefills=prefill_rows(prefill)))
    chunk = RowWork(new=mixed, context=context + mixed)
    cases.append(
        Case(
            name=f"{mixed} new on {context} + 32 decodes",
            decoding=decode_rows(32, context),
            prefills=[chunk],
        )
    )
    return cases


def measure_kernels(
    model: str,
    cases: Sequence[Case],
    *,
    engine: dict[str, Any],
    rounds: int,
    on_ended: Callable[[int], None] = lambda count: None,
) -> KernelFigures:
    """Load the model in this process and time the cases; blocks. Raises as executors do.

    `threads` 0 means every core: nothing else runs meanwhile.
    """
    sizes = ModelSizes.of(load_model_config(model))
    settings = _settings(model, cases, engine)
    executor = make_executor(settings, 0, lambda seconds: None)
    ready = executor.load(lambda phase, fraction: None)
    driver = StepDriver(executor, ready.vocab_size, ready.kv_blocks, settings.block_tokens)
    driver.touch(settings.max_num_seqs)
    probe = Probe()
    try:
        taken: dict[str, list[_Taken]] = {case.name: [] for case in cases}
        after = probe.measure(settings.threads, tries=PROBE_TRIES)
        for number in range(rounds + 1):
            for case in cases:
                before, found = after, _time_case(driver, case)
                after = probe.measure(settings.threads, tries=PROBE_TRIES)
                floor_s = _floor_s(StepWork.of(sizes, case.rows()), before.best(after))
                # The first round warms up.
                taken[case.name] += [attrs.evolve(found, floor_s=floor_s)] if number else []
                on_ended(1)
        return KernelFigures(
            executor=executor_name(settings, ready.numerics_id),
            threads=settings.threads,
            machine_floors=[probe.measure(threads) for threads in range(1, settings.threads + 1)],
            cases=[_figures(case, taken[case.name]) for case in cases],
        )
    finally:
        probe.close()


def executor_name(settings: EngineSettings, numerics_id: str) -> str:
    """Name of what computes: the setting, and what became of it."""
    return f"{settings.executor} ({numerics_id})"


def _settings(model: str, cases: Sequence[Case], engine: dict[str, Any]) -> EngineSettings:
    words = {**engine}
    words["threads"] = words.get("threads") or cores()
    words["max_num_seqs"] = max(len(case.rows()) for case in cases)
    tokens = max(sum(row.new for row in case.rows()) for case in cases)
    words["max_num_batched_tokens"] = max(tokens, words.get("max_num_batched_tokens", 0))
    settings = EngineSettings(model=model, **words)
    blocks = max(blocks_for(case.rows(), settings.block_tokens) for case in cases)
    return attrs.evolve(settings, kv_blocks=blocks)


@attrs.frozen
class _Taken:
    """Case in one round, seconds."""

    call_s: float
    step_s: float
    least_s: float
    floor_s: float = math.nan


def _floor_s(work: StepWork, floor: MachineFloor) -> float:
    return work.floor_s(read_gb_s=floor.read_gb_s, multiply_gflop_s=floor.multiply_gflop_s)


def _time_case(driver: StepDriver, case: Case) -> _Taken:
    driver.begin(case.decoding)
    driver.step(case.prefills)
    calls: list[float] = []
    steps: list[float] = []
    began_s = time.perf_counter()
    while len(steps) < STEPS_MAX:
        if len(steps) >= STEPS_MIN and time.perf_counter() - began_s > CASE_S:
            break
        at_s = time.perf_counter()
        result = driver.step(case.prefills)
        steps.append(time.perf_counter() - at_s)
        calls.append((result.compute_s or steps[-1]) - result.sample_s)
    calls.sort()
    steps.sort()
    return _Taken(
        call_s=calls[len(calls) // 2],
        step_s=steps[len(steps) // 2],
        least_s=calls[0],
    )


def _figures(case: Case, taken: Sequence[_Taken]) -> CaseFigures:
    known = [each for each in taken if not math.isnan(each.floor_s)]
    return CaseFigures(
        name=case.name,
        tokens=sum(row.new for row in case.rows()),
        call_ms=Series.of([each.call_s * 1e3 for each in taken]),
        step_ms=Series.of([each.step_s * 1e3 for each in taken]),
        least_ms=min(each.least_s for each in taken) * 1e3,
        floor_ms=Series.of([each.floor_s * 1e3 for each in known]),
        call_share=Series.of([each.floor_s / each.call_s for each in known]),
        step_share=Series.of([each.floor_s / each.step_s for each in known]),
    )
