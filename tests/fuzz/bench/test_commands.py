"""A sub-command measures, shows its table, and writes JSON in the common frame."""

import json
import pathlib

import pytest

from triolet.engine.errors import InvalidParameter
from triolet.fuzz.bench.commands import throughput
from triolet.fuzz.bench.options import ThroughputOptions


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


async def test_json_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: pathlib.Path,
) -> None:
    options = ThroughputOptions(json=str(tmp_path / "no" / "f.json"))
    with pytest.raises(InvalidParameter, match="json"):
        await throughput(None, options, engine={}, on_event=lambda _: None)
