"""A sole frontend that outlives SIGKILL: the server stays, tells clients, and has it back."""

import json
import pathlib

import openai
import pytest
import trio
from trio_websocket import CloseReason, ConnectionClosed

from triolet.fuzz.other_process import kept_from_ending
from triolet.runtime.control.calls import ControlCall, Place, Role
from triolet.runtime.control.client import ask_run

from .server import DEADLINE_S, Server, open_server, wait_until
from .streams import SeenStream, body, check_serves, open_socket, read_sse

pytestmark = pytest.mark.slow


async def read_chat(server: Server, ended: dict[str, openai.APIError]) -> None:
    """A stream of the SDK, up to what it raises."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        stream = await client.chat.completions.create(
            model="triolet-bundled",
            messages=[{"role": "user", "content": "A story"}],
            max_tokens=1500,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        try:
            async for _ in stream:
                ended.setdefault("", openai.APIError)  # type: ignore[arg-type]
        except openai.APIError as error:
            ended["chat"] = error


async def read_close(server: Server, closed: list[CloseReason | None]) -> None:
    """The events of a socket, up to why it is closed."""
    async with open_socket(server.url) as socket:
        await socket.send_message(json.dumps({"type": "response.create", **body(1500)}))
        try:
            while True:
                await socket.get_message()
                closed[:] = [None]
        except ConnectionClosed as error:
            closed[:] = [error.reason]


async def test_streams_end_by_an_error_new_ones_by_503_and_it_comes_back(
    tmp_path: pathlib.Path,
) -> None:
    chat: dict[str, openai.APIError] = {}
    closed: list[CloseReason | None] = []
    seen = SeenStream()
    options = ("--replay-wait", "0.5", "--ladder.kill-s", "0.3")
    with trio.fail_after(3 * DEADLINE_S):
        opened = open_server(tmp_path, *options)
        async with opened as server, server.client() as client, trio.open_nursery() as nursery:
            nursery.start_soon(read_chat, server, chat)
            nursery.start_soon(read_close, server, closed)
            nursery.start_soon(read_sse, client, body(1500), seen)
            await wait_until(lambda: bool(seen.token_ids and closed and chat), "all have begun")
            pids = await server.pids()
            with kept_from_ending(pids["frontend 0"]):
                for _ in range(2):  # the second order waits for nothing
                    place = Place(Role.FRONTEND, 0)
                    await ask_run(server.run_folder(), ControlCall.RESTART, place)
                await seen.ended.wait()
                assert seen.error["code"] == "frontend_stuck"
                await wait_until(lambda: "chat" in chat and bool(closed[0]), "all have ended")
                assert "hangs in the kernel" in str(chat["chat"])
                assert closed[0] is not None
                assert closed[0].code == 1013
                async with server.client() as other:
                    refused = await other.get("/v1/models")
                assert refused.status_code == 503
                assert refused.headers["retry-after"] == "5"
                assert "hangs in the kernel" in server.log()
            await check_serves(server)
            there = await server.pids()
            assert there["root"] == pids["root"]
            assert there["engine 0"] == pids["engine 0"]
            assert there["frontend 0"] != pids["frontend 0"]
