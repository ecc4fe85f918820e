"""Figures of the benchmarks as tables for people.

Sans-IO: figures in, tables out.
"""

import math
from collections.abc import Sequence

from rich.table import Table

from .serving.latency import LatencyRow
from .serving.prefix import PrefixFigures
from .serving.startup import StartFigures
from .serving.throughput import Throughput
from .steps.kernels import KernelFigures
from .steps.machine import MachineFloor
from .steps.timeline import StepFigures

_KINDS = ("frontend", "engine", "worker")


def _table(title: str, *heads: str) -> Table:
    return Table(*heads, title=title, title_justify="left")


def throughput_table(found: Throughput) -> Table:
    """Rates beside the yardstick's, and what each process spent."""
    work = found.work
    table = _table(
        f"{found.model}: {work.requests} requests at once, prompts {work.prompt_min} to"
        f" {work.prompt_max}, {work.tokens} tokens out; medians of {found.tokens_s.runs} rounds",
        *("", "output tokens/s", "CPU µs a token"),
    )
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
    table = _table(f"median of {figures.steps} steps", "part", "µs")
    for name, us in figures.spans_us.items():
        table.add_row(name, f"{us:.1f}")
    return table


def latency_table(name: str, rows: Sequence[LatencyRow]) -> Table:
    """A line for each load."""
    heads = ("", "loop", "tok/s", "first p50", "p99", "gap p50", "mean", "p99", "tok/event", "CPU")
    table = _table(f"{name}: times in ms, CPU in µs a token", *heads, *_KINDS, "errors")
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
    table = _table("seconds, and memory once ready", "", "")
    table.add_row("command to ready", found.start_s.text(2))
    table.add_row("engine killed to ready again", found.restart_s.text(2))
    table.add_row("  of it the engine's and worker's boot", found.engine_boot_s.text(2))
    table.add_row("frontend killed to ready again", found.frontend_s.text(2))
    table.add_row("idle, cores of all processes", found.idle_cores.text(4))
    for place, mib in found.resident_mib.items():
        table.add_row(f"{place}, MiB", f"{mib:.0f}")
    return table


def prefix_table(rows: Sequence[PrefixFigures]) -> Table:
    """Table with the cache and without."""
    heads = ("prefix cache", "hit rate", "cached tokens", "p50", "p99", "later turns p50")
    table = _table(f"{rows[0].turns} chat turns, first token in ms", *heads)
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
    heads = ("threads", "memory read GB/s", "multiply GFLOP/s", "instructions")
    table = _table("the machine's floor", *heads)
    for floor in floors:
        peak = "" if math.isnan(floor.multiply_gflop_s) else f"{floor.multiply_gflop_s:.0f}"
        table.add_row(str(floor.threads), f"{floor.read_gb_s:.1f}", peak, floor.isa or "none")
    return table


def kernel_table(found: KernelFigures) -> Table:
    """Each case beside its floor."""
    threads = f"{found.threads} thread{'s' * (found.threads > 1)}"
    heads = ("step", "call", "with Python", "least", "floor", "share", "share with Python")
    table = _table(f"{found.executor}, {threads}: ms", *heads)
    for case in found.cases:
        table.add_row(
            case.name,
            *(_figures(each) for each in (case.call_ms.median, case.step_ms.median)),
            *(_figures(each) for each in (case.least_ms, case.floor_ms.median)),
            case.call_share.text(2),
            case.step_share.text(2),
        )
    return table


def _figures(value: float) -> str:
    """Three figures or so, whatever the size."""
    return "" if math.isnan(value) else f"{value:.{3 if value < 10 else 1}f}"


def _ms(seconds: float) -> str:
    digits = 2 if seconds < 0.1 else 0  # three figures are enough
    return "" if math.isnan(seconds) else f"{seconds * 1e3:.{digits}f}"
