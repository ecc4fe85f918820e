"""A sub-command measures, shows its table, and writes JSON in the common frame."""

import json
import pathlib

import pytest

from triolet.api.commands.options import EngineOptions
from triolet.bench.commands import floor, throughput, timeline, words_of_serve
from triolet.bench.options import FloorOptions, ThroughputOptions, TimelineOptions
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


def test_options_of_an_engine_become_words_of_serve() -> None:
    assert words_of_serve(EngineOptions()) == []
    words = words_of_serve(EngineOptions(executor="null", threads=2, null_step_s=0.5))
    assert words == ["--executor", "null", "--threads", "2", "--null-step", "0.5"]


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
