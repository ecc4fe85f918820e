"""Sub-commands of `triolet bench`: options refused by name, golden runs; and the words of `-m`."""

import importlib.util
import json
import os
import pathlib
import select
import signal
import subprocess
import sys

import pytest

from triolet.bench.__main__ import BENCHMARKS
from triolet.bench.commands import floor, throughput, timeline
from triolet.bench.options import (
    FloorOptions,
    ThroughputOptions,
    TimelineOptions,
)


@pytest.mark.slow
async def test_throughput_on_screen_and_as_json(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.json"
    options = ThroughputOptions(
        requests=4, prompt_min=2, prompt_max=4, tokens=8, quick=True, json=str(path)
    )
    await throughput(None, options, engine={"executor": "null"}, on_event=lambda _: None)
    found = json.loads(path.read_text())
    assert found["command"] == "throughput"
    assert found["machine"]["cores"] >= 1
    assert found["tokens_s"]["median"] > 0
    assert found["work"]["requests"] == 1
    assert "output tokens/s" in capsys.readouterr().out


@pytest.mark.slow
async def test_a_timeline_as_lines_table_picture_and_json(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    svg, path = tmp_path / "t.svg", tmp_path / "t.json"
    options = TimelineOptions(
        running=2, prompt_tokens=4, tokens=24, svg=str(svg), json=str(path), steps=2
    )
    await timeline(None, options, engine={"executor": "null"}, on_event=lambda _: None)
    assert svg.read_text().startswith("<svg")
    assert json.loads(path.read_text())["running"] == 2
    printed = capsys.readouterr().out
    assert "worker |" in printed
    assert "the worker computes" in printed
    assert "schedule" in printed


@pytest.mark.slow
async def test_a_floor_on_screen_and_as_json(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.json"
    options = FloorOptions(batch=(1,), context=8, prefill=8, mixed=4, quick=True, json=str(path))
    engine = {"executor": "null", "threads": 1}
    await floor(None, options, engine=engine, on_event=lambda _: None)
    found = json.loads(path.read_text())
    assert [case["name"] for case in found["cases"]][:2] == ["decode 1", "prefill 8"]
    assert found["machine_floors"][0]["read_gb_s"] > 0
    assert "the machine's floor" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_is_terminated_ends_its_benchmark() -> None:
    """Also one that a shell began in the background, where SIGINT is ignored."""
    words = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "triolet.bench"]
    with subprocess.Popen([*words, "step_ring"], stdout=subprocess.PIPE) as run:
        children = pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children")
        assert run.stdout is not None
        for _ in ("", "== step_ring", "its first words"):
            run.stdout.readline()
        benchmark = pathlib.Path("/proc", children.read_text().strip())
        run.terminate()
        assert run.wait() == 128 + signal.SIGTERM
    assert not benchmark.exists()


KILLED = """
import os, time
from triolet.bench.parts.step_ring import forked

with forked(lambda: time.sleep(600), min(os.sched_getaffinity(0))):
    print(open(f"/proc/self/task/{os.getpid()}/children").read(), flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_what_a_benchmark_has_forked_dies_with_it() -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        child = os.pidfd_open(int(run.stdout.readline()))
        run.kill()
    ended = select.poll()
    ended.register(child, select.POLLIN)
    assert ended.poll(10_000)
    os.close(child)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_a_module(name: str) -> None:
    assert importlib.util.find_spec(f"triolet.bench.parts.{name}") is not None
