"""The command line: help, version, wrong words, and the tree of a running server."""

import pathlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest

import triolet
from triolet.command_line import restart_text, run_words, tree_text
from triolet.engine.errors import InvalidParameter
from triolet.nurseries.tasks.service import open_service
from triolet.nurseries.tasks.task_tree import ProcessTree, TaskNode
from triolet.runtime.errors import ControlCallRefused, RunNotFound
from triolet.runtime.messages import ControlCall, EngineState, Place, RestartedPlace, Role
from triolet.runtime.processes.control_server import ControlCallFailed, serve_control
from triolet.runtime.processes.run_folder import make_run_folder


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
        (["serve", "--port", "70000"], "--port must be at most 65535, not 70000"),
        (["serve", "--grace", "-1"], "--grace must be at least 0"),
        (["serve", "--host", "0.0.0.0"], "--api-key"),
        (["serve", "--kv-blocks", "-1"], "--kv-blocks must be at least 0"),
        (["serve", "--log-format", "xml"], "--log-format must be one of human, json"),
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


async def answer(call: ControlCall, place: Place | None) -> str:
    if call is ControlCall.TREE:
        return msgspec.json.encode(TREE).decode()
    if place == Place(Role.ENGINE, 7):
        raise ControlCallRefused("there is no engine 7: this server has engine 0 alone")
    restarted = RestartedPlace(place or Place(Role.FRONTEND, 1), EngineState.FAILED)
    return msgspec.json.encode({"restarted": [restarted]}).decode()


@asynccontextmanager
async def running(run_id: str) -> AsyncIterator[None]:
    with make_run_folder(run_id, url="http://x", model="m", version="0") as folder:
        async with open_service(partial(serve_control, folder, answer), name="control-server"):
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


async def test_of_two_servers_one_must_be_named() -> None:
    async with running("ab12"), running("cd34"):
        with pytest.raises(RunNotFound, match="ab12, cd34; say which one"):
            await tree_text(None, as_json=False)
        with pytest.raises(RunNotFound, match="none of them is 'x'"):
            await tree_text("x", as_json=False)
        assert await tree_text("cd", as_json=False)


async def test_a_server_that_is_gone_is_an_error() -> None:
    with (
        make_run_folder("ab12", url="http://x", model="m", version="0"),
        pytest.raises(ControlCallFailed),
    ):
        await tree_text(None, as_json=False)


async def test_a_place_begins_anew_and_a_line_says_what_it_was() -> None:
    async with running("ab12"):
        assert await restart_text(None, 0, None) == "engine 0 was failed, and begins anew"
        assert await restart_text("ab", None, 3) == "frontend 3 was failed, and begins anew"
        assert await restart_text(None, None, None) == "frontend 1 was failed, and begins anew"


async def test_what_cannot_be_restarted_is_one_sentence() -> None:
    async with running("ab12"):
        with pytest.raises(ControlCallRefused, match=r"^there is no engine 7: this"):
            await restart_text(None, 7, None)
        with pytest.raises(InvalidParameter):
            await restart_text(None, 0, 0)
    with pytest.raises(RunNotFound):
        await restart_text(None, 0, None)


def test_rolling_names_no_place(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = run(["restart", "--rolling", "--frontend", "0"], capsys)
    assert code == 2
    assert said.startswith("triolet: --rolling is for all places")
