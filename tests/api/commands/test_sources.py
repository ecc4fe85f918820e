"""Command line before environment before file before default, and who said what is known."""

import pathlib

import attrs
import pytest

from triolet.api.commands.options import EngineOptions, ServeOptions
from triolet.api.commands.sources import DEFAULT, TABLES, shown
from triolet.command_line import app, run_words, sources


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


def bound(words: list[str]) -> tuple[ServeOptions, EngineOptions]:
    """What `serve` would be called with."""
    _, arguments, _ = app.parse_args(["serve", *words], exit_on_error=False, print_error=False)
    found = arguments.arguments
    return (
        found.get("options", ServeOptions()),
        found.get("engine", EngineOptions()),
    )


def test_each_source_goes_before_the_next(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIOLET_PORT", "9002")
    monkeypatch.setenv("TRIOLET_LIMITS_SOCKET_PING_S", "7")
    options, engine = bound(["--config", str(file), "--grace", "2"])
    assert (options.grace, options.port, options.host) == (2.0, 9002, "127.0.0.1")
    assert options.api_key == ("one", "two")
    assert engine.boot_timeout_s == 12
    assert (options.limits.http.head_s, options.limits.socket.ping_s) == (3.0, 7.0)
    assert sources.of_option["--grace"] == "command line"
    assert sources.of_option["--port"] == "environment, TRIOLET_PORT"
    assert sources.of_option["--boot-timeout"] == f"{file}, [serve][boot-timeout]"
    assert "--host" not in sources.of_option


def test_the_environment_names_the_file(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIOLET_CONFIG", str(file))
    assert bound([])[0].port == 9001


def test_a_list_has_one_source(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, _ = bound(["--config", str(file), "--api-key", "three"])
    assert options.api_key == ("three",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[serve]\nprt = 1", "prt"),
        ("[serve.limits]\nhttpx = 1", "httpx"),
        ("[server]\nport = 1", "[server] is no table"),
        ("port = 1", "[port] is no table"),
        ("[serve]\nport = 'x'", "port"),
        ("[serve]\nport = [1, 2]", "port"),
        (
            "[serve]\nport = 8124.5",
            "[serve][port] must be a whole number of at most 64 bits, not 8",
        ),
        ("[serve]\nport = true", "[serve][port] must be a whole number"),
        ("[serve]\nport = '8125'", "[serve][port] must be a whole number"),
        ("[serve]\ngrace = nan", "[serve][grace] must be a finite number, not nan"),
        ("[serve]\nprefix-cache = 1", "[serve][prefix-cache] must be true or false, not 1"),
        ("[serve]\napi-key = [5]", "[serve][api-key] must be text"),
        ("[serve]\nmodel_name = 1.5", "[serve][model-name] must be text"),
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
    with pytest.raises(SystemExit) as ended:
        run_words(["config", "show", "--config", str(path)])
    assert ended.value.code != 0
    err = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "8124.5"], "--port must be a whole number of at most 64 bits, not '8124.5'"),
        (["--engines", "1e3"], "--engines must be a whole number"),
        (["--max-num-seqs", "9" * 30], "--max-num-seqs must be a whole number"),
        (["--grace", "inf"], "--grace must be a finite number, not 'inf'"),
        (["--limits.http.head-s", "nan"], "--limits.http.head-s must be a finite number"),
    ],
)
def test_a_word_of_a_wrong_type_is_a_usage_error(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_words(["config", "show", *words])
    assert ended.value.code != 0
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_variable_of_a_wrong_type_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIOLET_PORT", "80.5")
    with pytest.raises(SystemExit):
        run_words(["config", "show"])
    said = "environment: TRIOLET_PORT must be a whole number of at most 64 bits, not '80.5'"
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_words(["config", "show", "--config", "/nowhere/at.all"])
    assert "/nowhere/at.all" in capsys.readouterr().err


def test_every_option_is_shown_under_the_name_that_sets_it() -> None:
    """So that a source that is noted under a name is found under it."""
    groups = (ServeOptions(), EngineOptions())
    names = {row.option for group in groups for row in shown(group, sources)}
    arguments = app["serve"].assemble_argument_collection()
    leaves = {argument.name for argument in arguments if not argument.children}
    assert names <= leaves
    assert leaves - names == {"--model", "--config"}


def test_every_table_is_a_command() -> None:
    for words in TABLES:
        command = app
        for word in words:
            command = command[word]


def test_secrets_are_not_shown() -> None:
    rows = {row.option: row for row in shown(ServeOptions(api_key=("secret",)), sources)}
    assert "secret" not in str(rows["--api-key"].value)
    assert attrs.evolve(rows["--host"], source=DEFAULT).value == "127.0.0.1"
