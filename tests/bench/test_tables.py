"""Tables of made-up figures."""

import io
import math

import attrs
from rich.console import Console
from rich.table import Table

from triolet.bench.load.measures import ProcessCost, Spread, measure
from triolet.bench.load.options import Protocol
from triolet.bench.load.schedule import Load
from triolet.bench.prompts import Work
from triolet.bench.serving.latency import LatencyRow
from triolet.bench.serving.prefix import PrefixFigures
from triolet.bench.serving.series import Series
from triolet.bench.serving.startup import StartFigures
from triolet.bench.serving.throughput import Throughput
from triolet.bench.steps.kernels import CaseFigures, KernelFigures
from triolet.bench.steps.probe import MachineFloor
from triolet.bench.steps.timeline import join_records
from triolet.bench.tables import (
    kernel_table,
    latency_table,
    machine_table,
    prefix_table,
    startup_table,
    throughput_table,
    timeline_table,
)

from .steps.step_records import two_steps

FOUND = Throughput(
    work=Work(requests=4, prompt_min=2, prompt_max=8, tokens=16),
    model="m",
    tokens_s=Series.of([1000.0, 1200.0]),
    elapsed_s=Series.of([1.0]),
    cpu_us={"root": Series.of([3.0]), "worker": Series.of([70.0])},
)


def text_of(table: Table) -> str:
    stream = io.StringIO()
    Console(file=stream, width=120).print(table)
    return stream.getvalue()


def test_throughput_has_rates_and_cpu_by_process() -> None:
    text = text_of(throughput_table(FOUND))
    for words in ("m: 4 requests at once", "1100 [1000..1200]", "73", "worker"):
        assert words in text
    assert "ratio" not in text


def test_a_yardstick_stands_beside() -> None:
    beside = attrs.evolve(
        FOUND,
        reference="theirs 1.0",
        reference_tokens_s=Series.of([500.0]),
        reference_cpu_us=Series.of([900.0]),
        ratio=Series.of([2.1, 2.3, 2.2]),
    )
    text = text_of(throughput_table(beside))
    for words in ("theirs 1.0", "500", "900", "2.20 [2.10..2.30]"):
        assert words in text


def test_a_step_is_told_part_by_part() -> None:
    text = text_of(timeline_table(join_records(two_steps()).figures))
    for words in ("median of 2 steps", "schedule", "6.0", "compute", "100.0"):
        assert words in text


def test_a_load_is_a_line_with_cpu_by_kind_of_process() -> None:
    measures = measure([], elapsed_s=1.0, client_cpu_s=0.0, before={}, after={})
    costs = [ProcessCost(name, 1.0, us, 10.0) for name, us in (("engine", 3.0), ("engine 2", 4.0))]
    row = LatencyRow(
        protocol=Protocol.SSE,
        load=Load(requests=1, in_flight=8),
        measures=attrs.evolve(measures, processes=costs),
    )
    text = text_of(latency_table("m", [row]))
    assert "sse" in text
    cells = [cell.strip() for cell in text.split("\n")[-3].split("\u2502")]
    assert cells[-6:-1] == ["7", "0", "7", "0", "0"]


def test_a_start_has_seconds_and_memory() -> None:
    found = StartFigures(
        start_s=Series.of([1.25]),
        restart_s=Series.of([0.5]),
        engine_boot_s=Series.of([0.4]),
        frontend_s=Series.of([0.75]),
        resident_mib={"root": 35.6},
    )
    text = text_of(startup_table(found))
    for words in ("1.25", "0.50", "0.40", "0.75", "root, MiB", "36"):
        assert words in text


def test_floors_and_kernels_say_what_is_not_known() -> None:
    floor = MachineFloor(1, 40.0, math.nan, "")
    assert "none" in text_of(machine_table([floor]))
    case = CaseFigures(
        name="decode 1",
        tokens=1,
        call_ms=Series.of([2.0]),
        step_ms=Series.of([2.5]),
        least_ms=1.5,
        floor_ms=Series.of([1.0]),
        call_share=Series.of([0.5]),
        step_share=Series.of([0.4]),
    )
    found = KernelFigures(executor="e", threads=2, machine_floors=[floor], cases=[case])
    text = text_of(kernel_table(found))
    for words in ("e, 2 threads", "2.000", "2.500", "1.500", "0.50", "0.40"):
        assert words in text
    assert "target" not in text
    assert "0.9 or more" in text_of(kernel_table(found, {"decode 1": "0.9 or more"}))


def test_a_prefix_cache_is_told_beside_none() -> None:
    on = PrefixFigures(
        cache=True,
        turns=4,
        first_token_s=Spread.of([0.01]),
        later_s=Spread.of([0.005]),
        prompt_tokens=200,
        cached_tokens=150,
    )
    off = attrs.evolve(on, cache=False, cached_tokens=0, prompt_tokens=0)
    text = text_of(prefix_table([on, off]))
    for words in ("4 chat turns", "75 %", "150 of 200", "10.00", "5.00", "off", "0 %"):
        assert words in text
