"""Signals and exit codes of `triolet serve`: the command as a process, its children only act."""

import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import pytest
import trio
import trio.testing

from triolet.api.commands.serve import DESCRIPTORS_WANTED, ONE_WISH_S, take_signals

from ...leaks import children_of

pytestmark = pytest.mark.slow

SERVER = "triolet.tests.api.commands.acting_server"
# A line or an end that is not there by then never comes.
BOUND_S = 240.0


@attrs.define(eq=False)
class Server:
    """The process, and what it has said on stderr so far."""

    process: subprocess.Popen[str]
    said: list[str] = attrs.field(factory=list)

    def read_until(self, words: str) -> str:
        """The first line with these words, which may have been said already. Fails at the end."""
        for line in self.said:
            if words in line:
                return line
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if words in line:
                return line
        raise AssertionError(f"{words!r} was never said: {''.join(self.said)}")

    def port(self) -> int:
        line = self.read_until("serving on")
        return int(line.split("http://127.0.0.1:")[1].split()[0])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Exit code, and the rest of what it says."""
        out, err = self.process.communicate(timeout=BOUND_S)
        assert out == "", "stdout belongs to other commands"
        return self.process.returncode, err


@contextmanager
def open_server(
    folder: pathlib.Path,
    *,
    engines: tuple[str, ...] = ("ready",),
    frontends: tuple[str, ...] = ("ready",),
) -> Iterator[Server]:
    command = [sys.executable, "-m", SERVER, json.dumps(engines), json.dumps(frontends)]
    process = subprocess.Popen(
        command,
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Server(process)
        finally:
            process.kill()


def test_a_signal_drains_and_the_end_is_good(tmp_path: pathlib.Path) -> None:
    """Children may open as many descriptors as the system allows, whatever a shell does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, DESCRIPTORS_WANTED) - 1, hard))
    try:
        with open_server(tmp_path, frontends=("keep",)) as server:
            with socket.create_connection(("127.0.0.1", server.port())) as client:
                assert client.recv(100) == b"0 2 1 0"
                children = children_of(server.process.pid)
                limits = {resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in children}
                server.signal(signal.SIGHUP)
                server.read_until("draining")
                assert client.recv(100) == b""  # "keep" closes at the order to drain
            assert server.end()[0] == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(children) in (2, 3), "an engine, a frontend, and a form process by then"
    assert limits == {(min(hard, DESCRIPTORS_WANTED), hard)}
    assert not any(os.path.exists(f"/proc/{pid}") for pid in children)
    assert os.listdir(tmp_path / "triolet") == []


async def test_signals_close_together_are_one_wish(mock_clock: trio.testing.MockClock) -> None:
    handler = signal.getsignal(signal.SIGHUP)
    stop = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        await nursery.start(take_signals, trio.sleep_forever, stop)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            os.kill(os.getpid(), number)
            await trio.testing.wait_all_tasks_blocked()
            assert not stop.cancel_called
        mock_clock.jump(ONE_WISH_S)
        os.kill(os.getpid(), signal.SIGTERM)
        await trio.testing.wait_all_tasks_blocked()
        assert stop.cancel_called
        nursery.cancel_scope.cancel("seen")
    assert signal.getsignal(signal.SIGHUP) is handler


async def test_sighup_is_left_alone_under_nohup() -> None:
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(take_signals, trio.sleep_forever, trio.CancelScope())
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            nursery.cancel_scope.cancel("seen")
    finally:
        signal.signal(signal.SIGHUP, handler)


def test_the_second_signal_aborts_even_what_hangs(tmp_path: pathlib.Path) -> None:
    """The frontend is stopped with a connection open: it neither drains nor ends when asked."""
    with (
        open_server(tmp_path, frontends=("keep",)) as server,
        socket.create_connection(("127.0.0.1", server.port())) as client,
    ):
        assert client.recv(100) == b"0 2 1 0"
        children = children_of(server.process.pid)
        for pid in children:
            os.kill(pid, signal.SIGSTOP)
        server.signal(signal.SIGINT)
        server.read_until("draining")
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(ONE_WISH_S)  # it would be the same wish
        server.signal(signal.SIGTERM)
        code, rest = server.end()
    assert code == 0
    assert "aborting" in rest
    assert not any(os.path.exists(f"/proc/{pid}") for pid in children)


def test_a_lost_engine_shows_in_the_exit_code(tmp_path: pathlib.Path) -> None:
    with open_server(tmp_path, engines=("raise", "ready")) as server:
        server.read_until("engine 0: given up: it died too often")
        server.signal(signal.SIGINT)
        assert server.end()[0] == 3
