"""The command line as a person meets it: help, versions, wrong words; nothing is started here."""

import signal
import subprocess
import sys

import pytest

import triolet
from triolet.command_line import run_words


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the program with these words."""
    code = 0
    try:
        run_words(words)
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ["serve", "run", "tree", "Serve a large language model"]),
        (["serve"], ["--port", "--host", "--api-key", "TRIOLET_API_KEY", "--executor", "--grace"]),
        (["run"], ["--system", "--temperature", "--max-tokens", "--seed", "--executor"]),
        (["tree"], ["--json"]),
    ],
    ids=str,
)
def test_help_names_every_option(
    words: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run([*words, "--help"], capsys)
    assert (code, err) == (0, "")
    assert [word for word in said if word not in out] == []
    assert "--empty-" not in out  # lists have no option that empties them


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"], capsys) == (0, f"{triolet.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "nonsense"),
        (["serve", "--bogus"], "--bogus"),
        (["serve", "--port", "x"], "--port"),
        (["serve", "--port", "70000"], "--port must be from 0 to 65535"),
        (["serve", "--grace", "-1"], "--grace must be at least 0"),
        (["serve", "--restart-limit", "-1"], "--restart-limit must be at least 0"),
        (["serve", "--restart-period", "0"], "--restart-period must be at least"),
        (["serve", "--host", "0.0.0.0"], "--api-key"),
        (["serve", "--api-key", ""], "--api-key"),
        (["serve", "--allowed-host", "a/b"], "--allowed-host"),
        (["serve", "--kv-blocks", "-1"], "--kv-blocks must be at least 0"),
        (["serve", "--log-format", "xml"], "--log-format must be one of human, json"),
        (["serve", "--log-level", "loud"], "--log-level must be one of"),
        (["serve", "--executor", "magic"], "--executor must be one of"),
        (["run", "--temperature", "-1"], "--temperature must be"),
        (["run", "--workers", "0"], "--workers must be at least 1"),
        (["serve", "one", "two"], "two"),
    ],
    ids=str,
)
def test_a_wrong_command_line_is_one_sentence_and_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(words, capsys)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_a_model_folder_that_is_not_there_is_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in ("serve", "run"):
        code, _, err = run([command, "/nowhere"], capsys)
        assert code == 1
        assert "/nowhere" in err
        assert "choose another model" in err


@pytest.mark.slow
def test_the_program_reads_its_own_arguments() -> None:
    command = [sys.executable, "-m", "triolet", "serve", "--port", "x"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--port" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", [["serve"], ["doctor"], ["bench"]], ids=str)
def test_ctrl_c_while_modules_are_imported_just_ends_it(words: list[str]) -> None:
    """`-X importtime` tells of each module; the interrupt comes amid those of the commands."""
    command = [sys.executable, "-X", "importtime", "-m", "triolet", *words]
    # A program in the background of a shell ignores it, and so would those that it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.split()[-1] == "attrs":
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in rest
