"""What has changed about a server is noticed; what is as it was passes."""

import os

import pytest

from triolet.fuzz.fuzzers.storm import ProcessWatch, Sample, ServerHurt, ServerUnknown, slope
from triolet.fuzz.observers import Cost


def watch(*mib: float, last_pid: int = 7) -> ProcessWatch:
    """One process whose memory is sampled each 100 pieces of work."""
    found = ProcessWatch(1)
    for number, resident in enumerate(mib):
        pid = last_pid if number == len(mib) - 1 else 7
        cost = Cost(name="frontend", pid=pid, cpu_s=number, resident_mib=resident)
        found.samples.append(Sample(number * 100, {"frontend": cost}))
    return found


def test_warming_up_is_no_leak() -> None:
    found = watch(10.0, 40.0, 50.0, 50.1, 50.0, 50.2, 50.1, 50.1, 50.1, 50.2, 50.1)
    found.judge()
    assert abs(found.growth_mib("frontend")) < 0.2


def test_growth_that_goes_on_is_one() -> None:
    found = watch(*[50.0 + number for number in range(11)])
    with pytest.raises(ServerHurt, match=r"frontend grew by 7\.0 MiB"):
        found.judge()


def test_another_process_is_not_the_same() -> None:
    with pytest.raises(ServerHurt, match=r"7.*8"):
        watch(50.0, 50.0, last_pid=8).judge()


def test_a_process_that_is_gone() -> None:
    found = watch(50.0, 50.0)
    found.samples.append(Sample(200, {}))
    with pytest.raises(ServerHurt):
        found.judge()
    assert "gone" in found.lines()[1]


def test_it_looks_at_real_processes() -> None:
    found = ProcessWatch(os.getpid())
    found.sample(0)
    assert found.samples[0].costs["root"].resident_mib > 1
    assert len(found.lines()) >= 2


def test_nobody_has_this_url() -> None:
    with pytest.raises(ServerUnknown, match="http://nobody:1"):
        ProcessWatch.of_url("http://nobody:1")


def test_the_slope_of_a_line() -> None:
    assert slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == pytest.approx(2.0)
    assert slope([(1.0, 1.0), (1.0, 3.0)]) == slope([]) == 0.0
