"""Figures of the benchmarks as tables for people.

Sans-IO: figures in, tables out.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rich.table import Table

from .serving.latency import LatencyRow
from .serving.prefix import PrefixFigures
from .serving.startup import StartFigures
from .serving.throughput import Throughput
from .steps.kernels import KernelFigures
from .steps.machine import MachineFloor
from .steps.timeline import StepFigures

_KINDS = ("frontend", "engine", "worker")
NO_TARGETS: Mapping[str, str] = MappingProxyType({})


def throughput_table(found: Throughput) -> Table:
    """Rates beside the yardstick's, and what each process spent."""
    work = found.work
    table = Table(
        title=f"{found.model}: {work.requests} requests at once, prompts {work.prompt_min} to"
        f" {work.prompt_max}, {work.tokens} tokens out; medians of {found.tokens_s.runs} rounds",
        title_justify="left",
    )
    for head in ("", "output tokens/s", "CPU µs a token"):
        table.add_column(head)
    total = sum(series.median for series in found.cpu_us.values())
    table.add_row("triolet", found.tokens_s.text(), f"{total:.0f}")
    for name, series in found.cpu_us.items():
        table.add_row(f"  {name}", "", series.text())
    if found.reference:
        table.add_row(
            found.reference, found.reference_tokens_s.text(), found.reference_cpu_us.text()
        )
        table.add_row("ratio, run by run", found.ratio.text(2), "")
    return table


def timeline_table(figures: StepFigures) -> Table:
    """The parts of a step."""
    table = Table(title=f"median of {figures.steps} steps", title_justify="left")
    for head in ("part", "µs"):
        table.add_column(head, justify="right" if head == "µs" else "left")
    for name, us in figures.spans_us.items():
        table.add_row(name, f"{us:.1f}")
    return table


def latency_table(name: str, rows: Sequence[LatencyRow]) -> Table:
    """A line for each load."""
    table = Table(title=f"{name}: times in ms, CPU in µs a token", title_justify="left")
    heads = ("", "loop", "tok/s", "first p50", "p99", "gap p50", "mean", "p99", "tok/event", "CPU")
    for head in (*heads, *_KINDS, "errors"):
        table.add_column(head)
    for row in rows:
        found = row.measures
        costs = {each.name: each.cpu_us_per_token for each in found.processes}
        by_kind = [
            sum(us for name, us in costs.items() if name.startswith(kind)) for kind in _KINDS
        ]
        table.add_row(
            row.protocol.value,
            row.loop(),
            f"{found.tokens_per_s:.0f}",
            *(_ms(each) for each in (found.first_token_s.p50, found.first_token_s.p99)),
            *(_ms(each) for each in (found.gap_s.p50, found.gap_s.mean, found.gap_s.p99)),
            f"{found.tokens_per_delta:.2f}",
            *(f"{us:.0f}" for us in (sum(by_kind), *by_kind)),
            str(sum(found.errors.values())),
        )
    return table


def startup_table(found: StartFigures) -> Table:
    """Seconds, and what each process holds."""
    table = Table(title="seconds, and memory once ready", title_justify="left")
    table.add_column("")
    table.add_column("")
    table.add_row("command to ready", found.start_s.text(2))
    table.add_row("engine killed to ready again", found.restart_s.text(2))
    table.add_row("  of it the engine's and worker's boot", found.engine_boot_s.text(2))
    table.add_row("frontend killed to ready again", found.frontend_s.text(2))
    for place, mib in found.resident_mib.items():
        table.add_row(f"{place}, MiB", f"{mib:.0f}")
    return table


def prefix_table(rows: Sequence[PrefixFigures]) -> Table:
    """Table with the cache and without."""
    table = Table(title=f"{rows[0].turns} chat turns, first token in ms", title_justify="left")
    for head in ("prefix cache", "hit rate", "cached tokens", "p50", "p99", "later turns p50"):
        table.add_column(head)
    for row in rows:
        table.add_row(
            "on" if row.cache else "off",
            f"{row.hit_rate * 100:.0f} %",
            f"{row.cached_tokens} of {row.prompt_tokens}",
            _ms(row.first_token_s.p50),
            _ms(row.first_token_s.p99),
            _ms(row.later_s.p50),
        )
    return table


def machine_table(floors: Sequence[MachineFloor]) -> Table:
    """Table of the most that this machine can do."""
    table = Table(title="the machine's floor", title_justify="left")
    for head in ("threads", "memory read GB/s", "multiply GFLOP/s", "instructions"):
        table.add_column(head)
    for floor in floors:
        peak = "" if math.isnan(floor.multiply_gflop_s) else f"{floor.multiply_gflop_s:.0f}"
        table.add_row(str(floor.threads), f"{floor.read_gb_s:.1f}", peak, floor.isa or "none")
    return table


def kernel_table(found: KernelFigures, targets: Mapping[str, str] = NO_TARGETS) -> Table:
    """Each case beside its floor; `targets` by the case's name."""
    threads = f"{found.threads} thread{'s' * (found.threads > 1)}"
    table = Table(title=f"{found.executor}, {threads}: ms", title_justify="left")
    for head in ("step", "call", "with Python", "least", "floor", "share", "share with Python"):
        table.add_column(head)
    if targets:
        table.add_column("target")
    for case in found.cases:
        table.add_row(
            case.name,
            *(_figures(each) for each in (case.call_ms.median, case.step_ms.median)),
            *(_figures(each) for each in (case.least_ms, case.floor_ms.median)),
            case.call_share.text(2),
            case.step_share.text(2),
            *([targets.get(case.name, "")] if targets else []),
        )
    return table


def _figures(value: float) -> str:
    """Three figures or so, whatever the size."""
    return "" if math.isnan(value) else f"{value:.{3 if value < 10 else 1}f}"


def _ms(seconds: float) -> str:
    digits = 2 if seconds < 0.1 else 0  # three figures are enough
    return "" if math.isnan(seconds) else f"{seconds * 1e3:.{digits}f}"
