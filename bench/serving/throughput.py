"""`triolet bench throughput`: offline tokens a second of an engine.

All prompts are asked for at once, by token ids, through the real processes: this one is root and
frontend, engine and worker are their own. With a yardstick its rounds and ours take turns.
"""

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from ...engine.errors import InvalidParameter
from ...engine.sampling_params import SamplingParams
from ...fuzz.observers import costs_of_tree, cpu_spent
from ...runtime.config import WHOLE_MERGE_S, AdmissionLimits
from ...runtime.events import OnEvent, ignore_event
from ...runtime.runtime import Runtime, open_runtime
from ..load.measures import NO_SERIES, Series, ratios
from ..options import ThroughputOptions, Work
from .reference import Reference, open_reference

OnEnded = Callable[[int], None]


@attrs.frozen(kw_only=True)
class OfflineRun:
    """Round: how long it took, and what each process spent."""

    elapsed_s: float
    prompt_tokens: int
    output_tokens: int
    cpu_s: dict[str, float]

    @property
    def output_tokens_s(self) -> float:
        """The rate that everybody tells."""
        return self.output_tokens / self.elapsed_s


@attrs.frozen(kw_only=True)
class Throughput:
    """The figures. Rates are of output tokens; CPU in µs per output token, by process."""

    work: Work
    model: str
    tokens_s: Series
    elapsed_s: Series
    cpu_us: dict[str, Series]
    reference: str = ""
    reference_tokens_s: Series = NO_SERIES
    reference_cpu_us: Series = NO_SERIES
    ratio: Series = NO_SERIES


async def measure_throughput(
    model: str | None,
    options: ThroughputOptions,
    *,
    engine: dict[str, Any],
    on_event: OnEvent = ignore_event,
    on_ended: OnEnded = lambda count: None,
) -> Throughput:
    """Run the rounds, of which the first one warms up.

    Raises as `open_runtime` and `Runtime.generate` do; `ReferenceUnusable`.
    """
    work = options.work()
    ours: list[OfflineRun] = []
    theirs = []
    async with (
        open_runtime(model, on_event=on_event, admission=_all_of(work), **engine) as runtime,
        _maybe_reference(runtime, options) as reference,
    ):
        prompts = work.prompts(plain_token_ids(runtime))
        _check_lengths(work, runtime)
        params = SamplingParams(
            max_tokens=work.tokens, temperature=options.temperature, ignore_eos=True, seed=work.seed
        )
        for number in range(options.repeats() + 1):
            salt = f"round {number}"  # what an earlier round left in the prefix cache is no help
            run = await run_offline(runtime, prompts, params, salt=salt, on_ended=on_ended)
            their = await reference.run(prompts, work.tokens) if reference else None
            on_ended(len(prompts) if reference else 0)
            if number:
                ours.append(run)
                theirs += [their] if their else []
        name = runtime.model_name
    found = Throughput(
        work=work,
        model=name,
        tokens_s=Series.of([run.output_tokens_s for run in ours]),
        elapsed_s=Series.of([run.elapsed_s for run in ours]),
        cpu_us={
            name: Series.of([run.cpu_s[name] / run.output_tokens * 1e6 for run in ours])
            for name in ours[0].cpu_s
        },
    )
    if reference is None:
        return found
    rates = [each.output_tokens / each.elapsed_s for each in theirs]
    return attrs.evolve(
        found,
        reference=reference.description,
        reference_tokens_s=Series.of(rates),
        reference_cpu_us=Series.of([each.cpu_s / each.output_tokens * 1e6 for each in theirs]),
        ratio=ratios([run.output_tokens_s for run in ours], rates),
    )


async def run_offline(
    runtime: Runtime,
    prompts: list[list[int]],
    params: SamplingParams,
    *,
    salt: str,
    on_ended: OnEnded = lambda count: None,
) -> OfflineRun:
    """Answer all prompts at once, until the last; no prefix hits but within a `salt`."""
    lengths: list[int] = []

    async def answer(prompt: list[int]) -> None:
        opened = runtime.generate(
            prompt, params, streaming=False, cache_salt=salt, merge_s=WHOLE_MERGE_S
        )
        async with opened as stream:
            await stream.collect()
        lengths.append(len(stream.token_ids))
        on_ended(1)

    before, began_s = costs_of_tree(os.getpid()), time.perf_counter()
    async with trio.open_nursery() as nursery:
        for prompt in prompts:
            nursery.start_soon(answer, prompt)
    elapsed_s = time.perf_counter() - began_s
    return OfflineRun(
        elapsed_s=elapsed_s,
        prompt_tokens=sum(map(len, prompts)),
        output_tokens=sum(lengths),
        cpu_s=_ours(cpu_spent(before, costs_of_tree(os.getpid()))),
    )


def _all_of(work: Work) -> AdmissionLimits:
    """Limits that refuse nothing of the work: it lies ready, all of it."""
    usual = AdmissionLimits()
    return AdmissionLimits(
        active_requests_max=max(usual.active_requests_max, work.requests),
        queued_tokens_max=max(usual.queued_tokens_max, work.requests * work.prompt_max),
    )


def plain_token_ids(runtime: Runtime) -> list[int]:
    """Tokens that are text by themselves, of any model: what prompts are drawn from."""
    table = runtime.inputs.tokenizer
    special = set(table.special_tokens.values())
    strings = table.token_strings(range(table.vocabulary_size))
    return [i for i, text in enumerate(strings) if text and text not in special]


def _check_lengths(work: Work, runtime: Runtime) -> None:
    longest = work.prompt_max + work.tokens
    if longest > runtime.max_model_len:
        reason = f"and --tokens together must be at most {runtime.max_model_len}, not {longest}"
        raise InvalidParameter("prompt_max", f"{reason}: the longest that this model takes")


def _ours(spent: dict[str, float]) -> dict[str, float]:
    """Costs without the yardstick's process, which waits meanwhile."""
    return {name: cpu_s for name, cpu_s in spent.items() if not name.endswith("transformers")}


@asynccontextmanager
async def _maybe_reference(
    runtime: Runtime, options: ThroughputOptions
) -> AsyncIterator[Reference | None]:
    if not options.against:
        yield None
        return
    folder = runtime.inputs.tokenizer.folder
    async with open_reference(folder, threads=options.against_threads) as reference:
        yield reference
