"""A program as head: hosts join it, its streams go over their engines and outlast them."""

import os
import pathlib
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

import triolet
from triolet.engine.errors import InvalidParameter
from triolet.fuzz.observers import name_of
from triolet.fuzz.server_process import ServerProcess
from triolet.runtime.errors import NoEngine
from triolet.runtime.events import HostJoined, HostsAwaited, RunEvent
from triolet.runtime.hosts.host_keys import write_cluster_keys

from ..leaks import check_no_leaks
from .server import DEADLINE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.end_to_end]

PARAMS = triolet.SamplingParams(max_tokens=200, seed=1, ignore_eos=True)
PROMPT = "One morning, a quick red fox"
ENGINE = re.compile(r"triolet: engine \d")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@attrs.define(eq=False)
class Lab:
    """Keys, a port, and the hosts that dial it."""

    folder: pathlib.Path
    port: int = attrs.field(factory=free_port)
    hosts: list[ServerProcess] = attrs.field(factory=list)

    @property
    def key(self) -> str:
        return str(self.folder / "key")

    @property
    def options(self) -> dict[str, Any]:
        """Options of a head without engines."""
        head = {"join_port": self.port, "advertise": "127.0.0.1", "key": self.key}
        return {"engines": 0, "model_name": "m", **head}

    def start_host(self, name: str) -> ServerProcess:
        (folder := self.folder / name).mkdir()
        join = ["--join", f"127.0.0.1:{self.port}", "--key", self.key, "--name", name]
        command = [sys.executable, "-m", "triolet", "engine", *join, "--threads", "1"]
        self.hosts.append(ServerProcess(command, folder))
        self.hosts[-1].spawn()
        return self.hosts[-1]


@asynccontextmanager
async def open_lab(folder: pathlib.Path) -> AsyncIterator[Lab]:
    write_cluster_keys(folder / "key")
    lab = Lab(folder)
    with trio.fail_after(2 * DEADLINE_S), check_no_leaks():
        try:
            yield lab
        finally:
            for host in lab.hosts:  # one that is killed may be about to have another engine
                with trio.CancelScope(shield=True):
                    host.popen.terminate()
                    await trio.to_thread.run_sync(host.popen.wait, DEADLINE_S)
                host.kill()


def kill_engine(host: ServerProcess) -> None:
    (pid,) = [pid for pid in host.marked() if ENGINE.match(name_of(pid))]
    os.kill(pid, signal.SIGKILL)


async def test_a_program_is_a_head_and_its_streams_outlast_an_engine_of_a_host(
    tmp_path: pathlib.Path,
) -> None:
    seen: list[RunEvent] = []
    async with open_lab(tmp_path) as lab:
        host = lab.start_host("b")
        async with triolet.open_runtime(on_event=seen.append, **lab.options) as runtime:
            assert repr(runtime) == "<Runtime of m: 1 of 1 engines ready>"
            async with runtime.generate(PROMPT, PARAMS) as stream:
                wanted = (await stream.collect()).token_ids
            async with runtime.generate(PROMPT, PARAMS, engine=0, credit=60) as stream:
                while len(stream.token_ids) < 40:
                    await anext(stream)
                kill_engine(host)
                stream.grant(200)
                assert (await stream.collect()).token_ids == wanted
            (engine,) = runtime.health().engines
            assert (engine.host, engine.restarts) == ("b", 1)
            assert runtime.statistics().frontend.requests_replayed_total == 1
            assert len(await runtime.engine_statistics()) == 1
    assert HostsAwaited(f"127.0.0.1:{lab.port}") in seen
    assert [event.ranks for event in seen if isinstance(event, HostJoined)] == [[0]]


async def test_one_host_after_another_serves_an_llm(tmp_path: pathlib.Path) -> None:
    async with open_lab(tmp_path) as lab:
        lab.start_host("b")

        def answer() -> str:
            with triolet.LLM(**lab.options) as llm:
                return llm.generate(PROMPT, triolet.SamplingParams(max_tokens=4, seed=1))[0].text

        texts = [await trio.to_thread.run_sync(answer) for _ in range(2)]
        assert texts[0] == texts[1] != ""
        # The host has lost its first head, and found the second one by itself.
        assert lab.hosts[0].log().count("joined with engine 0") == 2


async def test_a_head_to_which_nothing_comes_says_so(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_lab(tmp_path) as lab:
        with pytest.raises(
            NoEngine, match=f"start one with triolet engine --join 127.0.0.1:{lab.port}"
        ):
            async with triolet.open_runtime(**lab.options, first_host_s=0.2):
                pass
        with pytest.raises(NoEngine):
            await trio.to_thread.run_sync(lambda: triolet.LLM(**lab.options, first_host_s=0.2))
        assert "waiting for a host: triolet engine --join" in capsys.readouterr().err
        with pytest.raises(InvalidParameter, match="join_port needs processes"):
            async with triolet.open_runtime(in_process=True, **lab.options):
                pass
        with pytest.raises(InvalidParameter, match="key is missing"):
            async with triolet.open_runtime(**{**lab.options, "key": ""}):
                pass


async def test_an_llm_has_hosts_begun_on_this_machine() -> None:
    def answers() -> tuple[list[str], set[str]]:
        with triolet.LLM(engines=0, launcher="local", hosts=2, threads=1) as llm:
            assert llm._runtime is not None
            found = llm.generate(["A fox"] * 4, triolet.SamplingParams(max_tokens=4, seed=1))
            hosts = {engine.host for engine in llm._runtime.health().engines}
            return [each.text for each in found], hosts

    with trio.fail_after(2 * DEADLINE_S), check_no_leaks():
        texts, hosts = await trio.to_thread.run_sync(answers)
    assert len(set(texts)) == 1
    assert "local-0" in hosts or "local-1" in hosts


@pytest.mark.parametrize("launcher", ["joined", "local"])
async def test_a_batch_is_answered_by_hosts(tmp_path: pathlib.Path, launcher: str) -> None:
    lines = [
        f'{{"custom_id": "{n}", "method": "POST", "url": "/v1/completions",'
        f' "body": {{"prompt": "hi {n}", "max_tokens": 4}}}}\n'
        for n in range(8)
    ]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    async with open_lab(tmp_path) as lab:
        if launcher == "joined":
            lab.start_host("b")
            door = ["--join-port", str(lab.port), "--advertise", "127.0.0.1", "--key", lab.key]
            said = "waiting for a host: triolet engine --join"
        else:
            door, said = ["--launcher", launcher, "--hosts", "2"], "waiting for the first host"
        files = [str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")]
        command = [sys.executable, "-m", "triolet", "batch", *files, "--engines", "0", *door]
        (folder := tmp_path / "batch").mkdir()
        batch = ServerProcess(command, folder)
        batch.spawn()
        try:
            await wait_until(lambda: batch.popen.poll() is not None, "the batch is through")
        finally:
            batch.kill()
        assert batch.popen.returncode == 0, batch.log()
        assert said in batch.log()
        assert "8 answered" in batch.log()
