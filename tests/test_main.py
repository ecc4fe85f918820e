"""The command line: help, version, wrong words, and the tree of a running server."""

import json
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import msgspec
import pytest

import triolet
from triolet.api.commands.options import GROUPS
from triolet.api.commands.running import drain_text, reload_text, restart_text, tree_text
from triolet.command_line import run_words
from triolet.engine.errors import InvalidParameter
from triolet.nurseries.tasks.service import open_service
from triolet.nurseries.tasks.task_tree import ProcessTree, TaskNode
from triolet.runtime.control.calls import (
    ControlCall,
    ControlQuestion,
    EngineState,
    Place,
    RestartedPlace,
    Role,
)
from triolet.runtime.control.run_folder import make_run_folder
from triolet.runtime.errors import ControlCallRefused, RunNotFound
from triolet.runtime.fleet.control_server import serve_control
from triolet.runtime.fleet.news import NewsQueue


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


@pytest.mark.parametrize("command", ["serve", "run"])
def test_help_is_grouped_and_has_no_option_of_tests(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run([command, "--help"], capsys)
    titles = re.findall(r"─ ([A-Z][a-z ]+) ─", out)
    assert titles == [title for title in GROUPS if title in titles]  # in this order, and no other
    shown = re.findall(r"│ (?:MODEL )?--([a-z-]+)", out)
    assert set(shown) <= set(" ".join(GROUPS.values()).split())
    assert not {"null-step", "load-format", "record-steps"} & set(shown)
    assert '[default: ""]' not in out
    assert "auto, native," in out  # as choices
    assert "triolet config show" in out


def test_the_last_of_a_repeated_option_counts(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["config", "show", "--json", "--port", "1", "--port", "2"]
    _, out, _ = run([*words, "--prefix-cache", "--no-prefix-cache"], capsys)
    values = {row["option"]: row["value"] for row in json.loads(out)}
    assert (values["--port"], values["--prefix-cache"]) == (2, False)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"], capsys) == (0, f"{triolet.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "nonsense"),
        (["serve", "--bogus"], "--bogus"),
        (["serve", "--port", "x"], "--port"),
        (["serve", "--port", "70000"], "--port must be at most 65535, not 70000"),
        (["serve", "--grace", "-1"], "--grace must be at least 0"),
        (["serve", "--host", "0.0.0.0"], "--api-key"),
        (["serve", "--kv-blocks", "-1"], "--kv-blocks must be at least 0"),
        (["serve", "--log-format", "xml"], "--log-format must be one of human, json"),
        (["serve", "--executor", "magic"], "--executor must be one of"),
        (["run", "--temperature", "-1"], "--temperature must be"),
        (["run", "--workers", "0"], "--workers must be at least 1"),
        (["serve", "one", "two"], "triolet: unexpected: two\n"),
        (["serve", "--prot", "1"], "triolet: unknown option: --prot. Did you mean --port?\n"),
        (["serve", "--port"], "triolet: --port needs a value\n"),
        (["serv"], 'triolet: unknown command "serv". Did you mean "serve"?'),
        (["serve", "--device", "tpu"], "triolet: --device must be one of cpu, cuda, not 'tpu'\n"),
    ],
    ids=str,
)
def test_a_wrong_command_line_is_one_sentence_and_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(words, capsys)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("triolet: ")
    assert err.count("\n") == 1


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


# ---- tree over a control socket

TREE = ProcessTree(
    "root",
    7,
    facts={"model": "m"},
    tasks=TaskNode("main", "parked", children=[TaskNode("accept", "waiting", "connections", 2.0)]),
    processes=[ProcessTree("engine 0", 8, facts={"state": "does not answer"})],
)


@pytest.fixture(autouse=True)
def runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The folder of all runs, so that other servers of this user are none of ours."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "triolet"


async def answer(question: ControlQuestion) -> str:
    call, place = question.call, question.place
    if call is ControlCall.TREE:
        return msgspec.json.encode(TREE).decode()
    if call is ControlCall.RELOAD:
        return '["b"]'
    if call is ControlCall.DRAIN and question.named == "host c":
        raise ControlCallRefused("there is no host c here")
    if place == Place(Role.ENGINE, 7):
        raise ControlCallRefused("there is no engine 7: this server has engine 0 alone")
    restarted = RestartedPlace(place or Place(Role.FRONTEND, 1), EngineState.FAILED)
    return msgspec.json.encode({"restarted": [restarted]}).decode()


@contextmanager
def no_view() -> Iterator[NewsQueue]:
    yield NewsQueue(lambda: None)


@asynccontextmanager
async def running(run_id: str) -> AsyncIterator[None]:
    with make_run_folder(run_id, url="http://x", model="m", version="0") as folder:
        async with open_service(
            partial(serve_control, folder, answer, no_view), name="control-server"
        ):
            yield


async def test_lines_name_processes_tasks_and_what_they_wait_for() -> None:
    async with running("ab12"):
        text = await tree_text(None, as_json=False)
    for words in ("root", "7", "model", "accept", "connections", "engine 0", "does not answer"):
        assert words in text
    assert text.index("accept") < text.index("engine 0")


async def test_json_is_the_tree_itself() -> None:
    async with running("ab12"):
        text = await tree_text("ab", as_json=True)
    assert msgspec.json.decode(text, type=ProcessTree) == TREE


async def test_without_a_server_the_error_says_how_to_start_one() -> None:
    with pytest.raises(RunNotFound, match="triolet serve"):
        await tree_text(None, as_json=False)


async def test_a_place_begins_anew_and_a_line_says_what_it_was() -> None:
    async with running("ab12"):
        assert await restart_text(None, 0, None) == "engine 0 was failed, and is restarted"
        assert await restart_text("ab", None, 3) == "frontend 3 was failed, and is restarted"
        assert await restart_text(None, None, None) == "frontend 1 was failed, and is restarted"


async def test_what_cannot_be_restarted_is_one_sentence() -> None:
    async with running("ab12"):
        with pytest.raises(ControlCallRefused, match=r"^there is no engine 7: this"):
            await restart_text(None, 7, None)
        with pytest.raises(InvalidParameter):
            await restart_text(None, 0, 0)


async def test_a_host_is_drained_by_its_name() -> None:
    async with running("ab12"):
        assert await drain_text(None, "b") == "host b drains, and ends"
        with pytest.raises(ControlCallRefused, match="there is no host c here"):
            await drain_text("ab", "c")


async def test_keys_are_read_again_and_who_is_refused_is_named() -> None:
    async with running("ab12"):
        assert await reload_text(None) == "keys were read\nhost b is refused"


def test_keys_are_rotated_or_retired(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    file = str(tmp_path / "key")
    for words in ([file], [file, "--rotate"], [file, "--retire"]):
        assert run(["keygen", *words], capsys)[0] == 0
    code, _, said = run(["keygen", file, "--rotate", "--retire"], capsys)
    assert code == 2
    assert said.startswith("triolet: --rotate and --retire exclude each other")


def test_rolling_names_no_place(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = run(["restart", "--rolling", "--frontend", "0"], capsys)
    assert code == 2
    assert said.startswith("triolet: --rolling is for all places")


def test_a_key_leaves_the_command_line_before_the_commands_are_imported() -> None:
    program = """
import sys
from triolet.__main__ import hide_keys
hide_keys()
assert "triolet.command_line" not in sys.modules
print(sys.argv[1:], open("/proc/self/cmdline").read())
"""
    words = ["serve", "--api-key", "secret-of-the-server"]
    found = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith(f"{words} triolet: starting")
    assert found.stdout.count("secret") == 1
    assert "TRIOLET_API_KEY" in found.stderr
    words = ["serve", "--api-key-file", "/etc/keys"]  # which is no key
    found = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
    )
    assert found.stderr == ""
