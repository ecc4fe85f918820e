"""Tables of made-up figures."""

import io

import attrs
from rich.console import Console
from rich.table import Table

from triolet.fuzz.bench.prompts import Work
from triolet.fuzz.bench.series import Series
from triolet.fuzz.bench.tables import throughput_table, timeline_table
from triolet.fuzz.bench.throughput import Throughput
from triolet.fuzz.bench.timeline import join_records

from .step_records import two_steps

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
