"""`triolet config show`: a table for people, JSON for programs, and nothing secret in either."""

import json

import pytest

from triolet.command_line import run_words


def show(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        run_words(["config", "show", *words])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_table_names_value_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    out = show(["FOLDER", "--port", "9", "--api-key", "secret"], capsys)
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert rows["MODEL"].split()[1:] == ["FOLDER", "command", "line"]
    assert rows["--port"].split()[1:] == ["9", "command", "line"]
    assert rows["--resume-keep"].split()[1:] == ["60.0", "default"]
    assert rows["--host"].split()[1:] == ["127.0.0.1", "default"]
    assert "secret" not in out


def test_the_same_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIOLET_LIMITS_SOCKET_AGE_S", "60")
    rows = {row["option"]: row for row in json.loads(show(["--json"], capsys))}
    assert rows["--limits.socket.age-s"] == {
        "option": "--limits.socket.age-s",
        "value": 60.0,
        "source": "environment, TRIOLET_LIMITS_SOCKET_AGE_S",
    }
    assert rows["MODEL"]["source"] == "default"
