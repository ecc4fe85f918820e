"""kill -9 of the root of a server with `--journal DIR`: one that is started again there goes on."""

import os
import pathlib
import resource
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from .resumed import ask_all, check_same
from .server import DEADLINE_S, Server, marked_processes, open_server, serve_command, wait_until
from .test_idempotency import response_in, send

pytestmark = pytest.mark.slow

PATH = "/v1/responses"
# Of each journal, when the machine dies.
LOST_BYTES = 3000
OF_ANOTHER_FILE = b"\xff" * 64
STORY: dict[str, Any] = {
    "input": "Tell me a story about a fox.",
    "max_output_tokens": 400,
    "runtime": {"seed": 5, "ignore_eos": True},
}


@asynccontextmanager
async def open_journaled(folder: pathlib.Path, *options: str) -> AsyncIterator[Server]:
    """A server that can be started again at the same address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    journal = str(folder / "journal")
    async with open_server(folder, "--port", port, "--journal", journal, *options) as server:
        yield server


async def kill_and_restart(server: Server, lost_bytes: int = 0) -> None:
    """kill -9 of the root alone; the next one waits for what that leaves."""
    server.popen.send_signal(signal.SIGKILL)
    server.popen.wait(DEADLINE_S)
    if lost_bytes:
        await wait_until(lambda: not marked_processes(server.mark), "all processes end")
        for path in (server.folder / "journal").glob("frontend-*"):
            os.truncate(path, max(2**20, path.stat().st_size - lost_bytes))
            # A cut between two records is none to a reader, but by the boot of the machine.
            with path.open("ab") as file:
                file.write(OF_ANOTHER_FILE)
    server.spawn()
    await server.wait_ready()


async def test_streams_of_a_killed_root_are_read_on_by_number(tmp_path: pathlib.Path) -> None:
    """Then the machine dies: what clients have seen of the lost end is computed again."""
    with trio.fail_after(4 * DEADLINE_S):
        slowly = ("--executor", "null", "--null-step", "0.01")
        async with open_journaled(tmp_path, "--frontends", "2", *slowly) as server:
            await server.wait_linked(2, 1)
            wanted = await ask_all(server, "undisturbed")
            for lost_bytes in (0, LOST_BYTES):
                await server.wait_linked(2, 1)
                restart = partial(kill_and_restart, server, lost_bytes)
                check_same(await ask_all(server, f"{lost_bytes} lost", restart), wanted)


async def test_what_was_promised_holds_after_a_kill_of_the_root(tmp_path: pathlib.Path) -> None:
    """Background responses, keys, ended responses, conversations; twice over."""
    with trio.fail_after(4 * DEADLINE_S):
        async with open_journaled(tmp_path) as server:
            await server.wait_linked(1, 1)
            undisturbed = response_in(await send(server, "undisturbed"))
            async with server.client() as client:
                ended = (await client.post(PATH, json={**STORY, "max_output_tokens": 20})).json()
            answers: list[Any] = []

            async def ask() -> None:
                answers.append(response_in(await send(server, "key", stream=True)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                async with server.client() as client:
                    body = {**STORY, "background": True}
                    background = (await client.post(PATH, json=body)).json()
                for _ in range(2):  # at once: it is under way
                    await kill_and_restart(server)
            answers.append(response_in(await send(server, "key", stream=True)))
            assert answers[0] == answers[1]
            async with server.client() as client:
                assert (await client.get(f"{PATH}/{ended['id']}")).json() == ended
                found: list[Any] = []

                async def has_ended() -> bool:
                    found[:] = [(await client.get(f"{PATH}/{background['id']}")).json()]
                    return found[0]["status"] not in ("queued", "in_progress")

                await wait_until(has_ended, "the background response ends")
                for response in (answers[0], found[0]):
                    content = response["output"][0]["content"]
                    assert content == undisturbed["output"][0]["content"]
                body = {"input": "And then?", "previous_response_id": ended["id"]}
                answer = await client.post(PATH, json={**STORY, **body, "max_output_tokens": 5})
                assert answer.status_code == 200, answer.text


async def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "journal"
    with trio.fail_after(DEADLINE_S):
        folder.write_text("a file")
        assert "File exists" in await refusal(tmp_path, folder)


async def refusal(home: pathlib.Path, folder: pathlib.Path, *options: str) -> str:
    """What a server says that does not start."""
    server = Server(serve_command("--journal", str(folder), *options), home)
    server.spawn()
    try:
        assert await server.wait_exited() != 0
        lines = server.log().splitlines()
        assert not any("Traceback" in line for line in lines), server.log()
        return next(line for line in lines if "--journal" in line)
    finally:
        server.kill()


async def test_a_full_disk_ends_no_stream(tmp_path: pathlib.Path) -> None:
    """A limit of the file's size stands for it; then another count of frontends is refused."""
    with trio.fail_after(3 * DEADLINE_S):
        async with open_journaled(tmp_path) as server:
            await server.wait_linked(1, 1)
            pids = await server.pids()
            size = 2**20 + 2000
            resource.prlimit(pids["frontend 0"], resource.RLIMIT_FSIZE, (size, size))
            answer = response_in(await send(server, "key"))
            assert answer["usage"]["output_tokens"] == 400
            async with server.client() as client:
                health = await client.get("/health")
            assert health.status_code == 200
            assert "File too large" in health.json()["degraded"][0]
        text = await refusal(tmp_path, tmp_path / "journal", "--frontends", "2")
        assert "has the journals of 1 frontends" in text
        assert "--frontends 1" in text
