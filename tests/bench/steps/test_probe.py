"""Rates of this machine, with and without the kernels; nothing is said of how fast it must be."""

import itertools
import math
from collections.abc import Iterator

import pytest

from triolet.bench.steps import probe
from triolet.bench.steps.probe import MachineFloor, Probe
from triolet.engine.kernels.library import NativeUnavailable, machine_isas, native_fault

SMALL_BYTES = 1 << 20


@pytest.fixture
def small() -> Iterator[Probe]:
    made = Probe(read_bytes=SMALL_BYTES)
    yield made
    made.close()


@pytest.mark.skipif(bool(native_fault()), reason="the kernels are not built here")
@pytest.mark.parametrize("isa", machine_isas())
def test_every_instruction_set_measures(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOLET_ISA", isa)
    made = Probe(read_bytes=SMALL_BYTES)
    try:
        for threads in (1, 2):
            floor = made.measure(threads, tries=1, turns=100)
            assert (floor.isa, floor.threads) == (isa, threads)
            assert 0 < floor.read_gb_s < math.inf
            assert 0 < floor.multiply_gflop_s < math.inf
    finally:
        made.close()


@pytest.mark.skipif(bool(native_fault()), reason="the kernels are not built here")
def test_all_memory_is_read_by_any_number_of_threads(small: Probe) -> None:
    functions, size = small._functions, SMALL_BYTES
    assert functions is not None
    # One word differs from the others, wherever it is: the checksum tells.
    for place in (0, 64 * 1000 + 8, size - 8):
        sums = set()
        for threads, several in itertools.product((1, 2, 3), (False, True)):
            small._memory[place] = 1
            before = functions.triolet_probe_read(small._buffer, size, threads, several)
            small._memory[place] = 9
            sums.add(before ^ functions.triolet_probe_read(small._buffer, size, threads, several))
            small._memory[place] = 1
        assert sums == {1 ^ 9}


def test_the_better_of_two_floors_is_taken_figure_by_figure() -> None:
    one = MachineFloor(threads=2, read_gb_s=20.0, multiply_gflop_s=400.0, isa="avx2")
    other = MachineFloor(threads=2, read_gb_s=30.0, multiply_gflop_s=300.0, isa="avx2")
    best = MachineFloor(threads=2, read_gb_s=30.0, multiply_gflop_s=400.0, isa="avx2")
    assert one.best(other) == other.best(one) == best


def test_without_kernels_memory_is_read_and_the_peak_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing() -> None:
        raise NativeUnavailable("not built")

    monkeypatch.setattr(probe, "open_library", nothing)
    made = Probe(read_bytes=SMALL_BYTES)
    floor = made.measure(1, tries=1)
    made.close()
    assert floor.isa == ""
    assert floor.read_gb_s > 0
    assert math.isnan(floor.multiply_gflop_s)
