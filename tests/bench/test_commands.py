"""Sub-commands of `triolet bench`: options refused by name, golden runs; and the words of `-m`."""

import importlib.util
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
from typing import Any

import pytest

from triolet.bench.__main__ import BENCHMARKS, UnknownBenchmark, describe, parse
from triolet.bench.commands import floor, throughput, timeline
from triolet.bench.options import (
    FloorOptions,
    LatencyOptions,
    PrefixOptions,
    StartupOptions,
    ThroughputOptions,
    TimelineOptions,
)
from triolet.engine.errors import InvalidParameter


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


async def test_json_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: pathlib.Path,
) -> None:
    options = ThroughputOptions(json=str(tmp_path / "no" / "f.json"))
    with pytest.raises(InvalidParameter, match="json"):
        await throughput(None, options, engine={}, on_event=lambda _: None)


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


def test_words_belong_to_the_benchmark_before_them() -> None:
    words = [
        "offline",
        "small",
        "--rounds",
        "2",
        "bridge",
        "--device",
        "cuda",
        "frontend",
        "--help",
    ]
    assert parse(words) == [
        ("offline", ["small", "--rounds", "2"]),
        ("bridge", ["--device", "cuda"]),
        ("frontend", ["--help"]),
    ]


@pytest.mark.parametrize("words", [["whole_pat"], ["bridge", "frontent"], ["--rounds", "2"]])
def test_an_unknown_word_is_refused_with_what_there_is(words: list[str]) -> None:
    with pytest.raises(UnknownBenchmark, match="there are: whole_path, frontend"):
        parse(words)


def test_help_has_a_line_for_each_benchmark_with_its_bound() -> None:
    lines = [line.split() for line in describe().splitlines()]
    said = {line[0]: int(line[1]) for line in lines if line and line[0] in BENCHMARKS}
    assert said == BENCHMARKS


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_a_module(name: str) -> None:
    assert importlib.util.find_spec(f"triolet.bench.parts.{name}") is not None


@pytest.mark.parametrize(
    ("kind", "words", "named"),
    [
        (ThroughputOptions, {"requests": 0}, "requests"),
        (ThroughputOptions, {"prompt_min": 9, "prompt_max": 8}, "prompt_max"),
        (ThroughputOptions, {"rounds": 0}, "rounds"),
        (ThroughputOptions, {"temperature": float("nan")}, "temperature"),
        (ThroughputOptions, {"temperature": -1.0}, "temperature"),
        (ThroughputOptions, {"against": "vllm"}, "against"),
        (ThroughputOptions, {"against": "transformers", "temperature": 1.0}, "against"),
        (ThroughputOptions, {"against_threads": -1}, "against_threads"),
        (TimelineOptions, {"running": 0}, "running"),
        (TimelineOptions, {"steps": 0}, "steps"),
        (TimelineOptions, {"tokens": 3}, "tokens"),
        (TimelineOptions, {"svg": "/nowhere/x.svg"}, "svg"),
        (LatencyOptions, {"concurrency": (1, 0)}, "concurrency"),
        (LatencyOptions, {"rates": (0.0,)}, "rates"),
        (LatencyOptions, {"rates": (float("nan"),)}, "rates"),
        (LatencyOptions, {"prompt_min": 9, "prompt_max": 8}, "prompt_max"),
        (LatencyOptions, {"tokens": 0}, "tokens"),
        (LatencyOptions, {"requests": -1}, "requests"),
        (StartupOptions, {"rounds": 0}, "rounds"),
        (PrefixOptions, {"turns": 7, "conversations": 8}, "turns"),
        (PrefixOptions, {"system_tokens": 0}, "system_tokens"),
        (FloorOptions, {"batch": (0,)}, "batch"),
        (FloorOptions, {"context": 0}, "context"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_name(kind: type, words: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        kind(**words)
    assert caught.value.parameter == named
