"""The command against a server it starts, and one that runs."""

import json
import pathlib
from typing import Any

import pytest

from triolet.bench.load.command import bench
from triolet.bench.load.options import BenchOptions, Protocol
from triolet.runtime.events import RunEvent, Serving

from ...end_to_end.server import open_server


def figures(path: pathlib.Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.slow
async def test_a_server_is_started_pressed_and_stopped(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[RunEvent] = []
    path = tmp_path / "figures"
    options = BenchOptions(requests=20, in_flight=10, tokens=8, warm_up=2, json=str(path))
    await bench(None, options, engine={"executor": "null"}, on_event=events.append)
    assert any(isinstance(event, Serving) for event in events)
    found = figures(path)
    assert (found["completed"], found["output_tokens"]) == (20, 160)
    names = [row["name"] for row in found["processes"]]
    assert sorted(names) == ["client", "engine", "frontend", "server", "worker"]
    assert "20 of 20 completed" in capsys.readouterr().out


@pytest.mark.slow
async def test_a_running_server_is_pressed(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    async with open_server(tmp_path, executor="null") as server:
        options = BenchOptions(
            url=server.url, protocol=Protocol.HTTP, requests=4, tokens=1, warm_up=0, json="-"
        )
        capsys.readouterr()
        await bench(None, options, engine={}, on_event=lambda _: None)
        printed = capsys.readouterr().out
    found = json.loads(printed)
    assert (found["completed"], found["output_tokens"]) == (4, 4)
    names = [row["name"] for row in found["processes"]]
    assert names[0] == "root"
    assert names[-2:] == ["server", "client"]
