"""Every fuzzer holds in a smoke run, and notices each fault that can be planted for it."""

import os
from collections import Counter
from typing import Any

import attrs
import pytest

from triolet.engine.messages import EngineStatistics
from triolet.fuzz.__main__ import FUZZERS
from triolet.fuzz.doubles.served import open_served
from triolet.fuzz.fuzzer import AnyFuzzer, run_canary, run_fuzzer
from triolet.fuzz.fuzzers.storm import (
    Press,
    ProcessWatch,
    Sample,
    ServerHurt,
    ServerUnknown,
    Storm,
    press_frames,
    press_handshake,
)
from triolet.fuzz.kv_accounting import WAYS, Accounts, account
from triolet.fuzz.observers import Cost

from ...house import ROOT

# Fixed, so that a run is the same everywhere; `python -m triolet.fuzz` takes others.
SEED = 1
CANARIES = [(fuzzer, fault) for fuzzer in FUZZERS for fault in fuzzer.faults]


@pytest.mark.slow
@pytest.mark.parametrize("fuzzer", FUZZERS, ids=lambda fuzzer: fuzzer.name)
def test_it_holds(fuzzer: AnyFuzzer) -> None:
    run_fuzzer(fuzzer, seed=SEED)


@pytest.mark.slow
@pytest.mark.parametrize(("fuzzer", "fault"), CANARIES, ids=lambda it: getattr(it, "name", it))
def test_it_notices(fuzzer: AnyFuzzer, fault: str) -> None:
    run_canary(fuzzer, fault, seed=SEED)


def test_every_fuzzer_is_in_the_list() -> None:
    folder = ROOT / "fuzz" / "fuzzers"
    files = {path.stem for path in folder.rglob("*.py") if "\nFUZZER = " in path.read_text()}
    names = [fuzzer.name.replace("-", "_") for fuzzer in FUZZERS]
    assert sorted(names) == sorted(files)


def test_every_fuzzer_can_fail_and_says_what_it_reached() -> None:
    for fuzzer in FUZZERS:
        assert fuzzer.faults, fuzzer.name
        assert fuzzer.reaches, fuzzer.name
        assert "\n" not in fuzzer.invariant


RIGHT = EngineStatistics(
    kv_blocks=4,
    kv_blocks_free=4,
    requests_added=5,
    requests_finished=2,
    requests_aborted=3,
    aborts_after=[1, 1, 1],
)


@pytest.mark.slow
async def test_every_block_is_free_whatever_the_requests_came_to() -> None:
    accounts = await account(160, seed=1)
    accounts.judge()
    assert accounts.ended.keys() >= WAYS.keys(), "each way was taken"
    assert accounts.statistics.preemptions
    assert accounts.statistics.prefix_hits
    assert accounts.statistics.requests_aborted
    assert any("free" in line for line in accounts.lines())


@pytest.mark.parametrize(
    "wrong",
    [
        {"kv_blocks_free": 3},
        {"running": 1},
        {"requests_aborted": 2},
        {"aborts_after": [1, 1, 0]},
        {"aborts_after": [1, 1, 0, 1]},
    ],
    ids=str,
)
def test_what_is_not_accounted_for_is_noticed(wrong: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        Accounts(Counter(), attrs.evolve(RIGHT, **wrong), 0).judge()


def test_a_reference_that_is_left_is_noticed() -> None:
    with pytest.raises(AssertionError, match="referred"):
        Accounts(Counter(), RIGHT, 1).judge()


def make_storm(address: tuple[str, int], count: int) -> Storm:
    url = f"http://{address[0]}:{address[1]}"
    return Storm(url, count, seed=1, in_flight=4, watch=ProcessWatch(os.getpid()))


@pytest.mark.slow
@pytest.mark.parametrize(("press", "count"), [(press_handshake, 60), (press_frames, 5000)])
async def test_a_small_storm(press: Press, count: int) -> None:
    async with open_served() as served:
        storm = make_storm(served.address, count)
        await storm.run(press)
        assert count <= storm.done < count + 4 * 2000
        assert sum(storm.reached.values()) >= 4
        assert storm.watch.samples[-1].done == storm.done
        await served.check_unharmed()


async def test_a_server_that_does_not_serve_is_hurt() -> None:
    async with open_served() as served:
        served.bed.lose_engine(0)
        served.bed.client.apply_membership(served.bed.directory.handle_failed(0))
        with pytest.raises(ServerHurt, match="503"):
            await make_storm(served.address, 1).run(press_handshake)


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


def test_no_server_has_this_url() -> None:
    with pytest.raises(ServerUnknown, match="http://nobody:1"):
        ProcessWatch.of_url("http://nobody:1")
