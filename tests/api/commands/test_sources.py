"""Command line before environment before file before default, and who said what is known."""

import json
import pathlib
import re
from typing import Any

import pytest

from triolet.api.commands.config_show import rows_of
from triolet.api.commands.options import KeyFileOptions, ServeOptions
from triolet.api.commands.sources import SOURCES, TABLES, fault_of_text, fault_of_value
from triolet.command_line import app, run_words


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "triolet.toml"
    path.write_text(
        """
        [serve]
        port = 9001
        grace = 1
        boot-timeout = 12
        api_key = ["one", "two"]
        [serve.limits.http]
        head_s = 3
        [run]
        temperature = 0
        """
    )
    return path


def bound(words: list[str]) -> Any:
    """What `serve` would be called with."""
    _, arguments, _ = app.parse_args(["serve", *words], exit_on_error=False, print_error=False)
    return arguments.arguments.get("options", ServeOptions())


def test_each_source_goes_before_the_next(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIOLET_PORT", "9002")
    monkeypatch.setenv("TRIOLET_LIMITS_SOCKET_PING_S", "7")
    options = bound(["--config", str(file), "--grace", "2"])
    assert options.runtime.times.grace_s == 2.0
    assert (options.listen.port, options.listen.host) == (9002, "127.0.0.1")
    assert options.serve.api_keys == ("one", "two")
    assert options.runtime.engine.boot_timeout_s == 12
    limits = options.serve.limits
    assert (limits.http.head_s, limits.socket.ping_s) == (3.0, 7.0)
    assert SOURCES.of_option["--grace"] == "command line"
    assert SOURCES.of_option["--port"] == "environment, TRIOLET_PORT"
    assert SOURCES.of_option["--boot-timeout"] == f"{file}, [serve][boot-timeout]"
    assert "--host" not in SOURCES.of_option


def test_the_environment_names_the_file(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIOLET_CONFIG", str(file))
    assert bound([]).listen.port == 9001


def test_a_list_has_one_source(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = bound(["--config", str(file), "--api-key", "three"])
    assert options.serve.api_keys == ("three",)


def test_a_list_takes_all_that_is_given() -> None:
    assert bound(["--api-key", "a", "--api-key", "b"]).serve.api_keys == ("a", "b")


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is printed, without its frame."""
    with pytest.raises(SystemExit) as ended:
        run_words(["config", "show", *words])
    assert ended.value.code != 0
    err = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[serve]\nprot = 1", "{path}: [serve] has no setting prot. Did you mean port?"),
        ("[serve]\nexecutor = 'x'", "[serve][executor] must be one of auto, native, torch, null"),
        ("[serve.limits]\nhttpx = 1", "httpx"),
        ("[server]\nport = 1", "[server] is not a table"),
        ("port = 1", "port is outside of any table"),
        (
            "[serve]\nport = 8124.5",
            "[serve][port] must be a whole number of at most 64 bits, not 8",
        ),
        ("[serve]\napi-key = [5]", "[serve][api-key] must be text"),
        ("[serve]\nrevision = 1.5", "[serve][revision] must be text"),
        ("[serve.limits]\nconnections-max = 3.5", "[limits][connections-max] must be a whole"),
        ("serve = 3", "must be a mapping"),
        ("[serve", "is not TOML"),
        ("[serve]\nlimits = 3", "limits must be a table"),
        ("[serve.limits]\nhttp = 3", "limits.http must be a table"),
        ("[serve.port]\nx = 3", "port"),
        ("x = " + "[" * 100_000, "is not TOML"),
        ("#" * 2**21, "larger than"),
    ],
    ids=lambda text: text[:20],
)
def test_a_wrong_file_is_a_usage_error_that_names_the_fault(
    text: str, said: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    assert said.replace("{path}", str(path)) in refusal(["--config", str(path)], capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "8124.5"], "--port must be a whole number of at most 64 bits, not '8124.5'"),
        (["--limits.http.head-s", "nan"], "--limits.http.head-s must be a finite number"),
        (["--config", "/nowhere/at.all"], "cannot read /nowhere/at.all: No such file"),
        ([], "environment: TRIOLET_ENGINES must be a whole number of at most 64 bits, not '1.5'"),
    ],
    ids=str,
)
def test_a_wrong_word_or_variable_is_a_usage_error(
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not words:
        monkeypatch.setenv("TRIOLET_ENGINES", "1.5")
    assert said in refusal(words, capsys)


def test_every_option_is_shown_under_the_name_that_sets_it() -> None:
    """So that a source that is noted under a name is found under it."""
    groups = (ServeOptions(), KeyFileOptions())
    rows = [row for group in groups for row in rows_of(group, {})]
    assert [row.option for row in rows if not row.help] == []
    assert {row.unit for row in rows if row.option.endswith("bytes-max")} == {"bytes"}
    names = {row.option for row in rows}
    arguments = app["serve"].assemble_argument_collection()
    leaves = {argument.name for argument in arguments if not argument.children}
    assert names <= leaves
    assert leaves - names == {"--model", "--config", "--help-all"}


def test_every_table_is_a_command() -> None:
    for words in TABLES:
        command = app
        for word in words:
            command = command[word]


# ---- config show


def show(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        run_words(["config", "show", *words])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_table_names_value_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    out = show(["FOLDER", "--port", "9", "--api-key", "secret"], capsys)
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert rows["MODEL"].split()[1:4] == ["FOLDER", "command", "line"]
    assert rows["--port"].split()[1:4] == ["9", "command", "line"]
    assert rows["--resume-keep"].split()[1:4] == ["60.0", "s", "default"]
    assert re.split("  +", rows["--host"])[1:] == ["127.0.0.1", "default", "Address to listen on."]
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
        "unit": "s",
        "help": "Seconds after which a socket is closed.",
    }
    assert rows["MODEL"]["source"] == "default"


def test_help_all_has_every_option_with_its_default_and_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        run_words(["serve", "--port", "9", "--help-all"])
    rows = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["option", "default", "meaning"]
    assert ["--port", "8000", "Port to listen on; 0 lets the system choose."] in rows
    assert ["--ladder.kill-s", "10.0 s"] in [row[:2] for row in rows]


# ---- types


@pytest.mark.parametrize(
    ("hint", "right", "wrong"),
    [
        (int, ["0", "-3", "+5", "1_000"], ["", "1.0", "1e3", "0x10", "true", "nan", "9" * 9999]),
        (float, ["0", "1e3", "-.5"], ["", "nan", "inf", "1,5", "true", "1e999"]),
        (float | None, ["2.5"], ["two"]),
        (bool, ["true", "whatever the parser says of it"], []),
        (str, ["", "5"], []),
        (tuple[str, ...], ["a"], []),
    ],
)
def test_words(hint: Any, right: list[str], wrong: list[str]) -> None:
    assert [fault_of_text(hint, text) for text in right] == [""] * len(right)
    assert [text for text in wrong if not fault_of_text(hint, text)] == []


@pytest.mark.parametrize(
    ("hint", "right", "wrong"),
    [
        (int, [0, -3], [1.0, True, "1", [1], {}, 2**63]),
        (float, [0, 1.5], [True, "1.5", float("nan"), float("inf"), 10**400]),
        (float | None, [2.5], ["2.5"]),
        (bool, [True, False], [0, 1, "true"]),
        (str, ["", "5"], [5, True, ["a"]]),
        (str | None, ["a"], [5]),
        (tuple[str, ...], ["a", ["a", "b"], []], [5, [5], ["a", 5]]),
        (dict[str, int], [{}, 5], []),
    ],
)
def test_values(hint: Any, right: list[object], wrong: list[object]) -> None:
    assert [fault_of_value(hint, value) for value in right] == [""] * len(right)
    assert [value for value in wrong if not fault_of_value(hint, value)] == []


def test_what_may_be_a_secret_is_not_quoted() -> None:
    assert fault_of_value(tuple[str, ...], [12345]) == "must be text"


def test_a_misspelt_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("PORT", "PROT", "API_KEY", "LIMITS_HTTP_HEAD_S", "PASS_ENV", "MODEL"):
        monkeypatch.setenv(f"TRIOLET_{name}", "1")
    with pytest.raises(SystemExit):
        run_words(["config", "show"])
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "TRIOLET_PROT" in sentence
    assert sentence.endswith("did you mean TRIOLET_PORT?")
