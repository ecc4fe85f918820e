"""A frontend that is given up for good: what it has left goes on at another one.

Its connections end, and clients come back by number over others. One server with two frontends,
each given up at its first death that is its own.
"""

import os
import pathlib
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from triolet.runtime.messages import ControlCall, Place, Role
from triolet.runtime.processes.control_server import ask_run

from .resumed import ask_all
from .server import DEADLINE_S, Server, open_server, wait_until
from .test_idempotency import check_added, response_in, send

pytestmark = pytest.mark.slow

PATH = "/v1/responses"
STORY: dict[str, Any] = {
    "input": "Tell me a story about a fox.",
    "max_output_tokens": 400,
    "runtime": {"seed": 5, "ignore_eos": True},
}


async def give_up(server: Server, rank: int) -> None:
    """Have a frontend end by a fault of its own, which is one too many."""
    os.kill((await server.pids())[f"frontend {rank}"], signal.SIGABRT)


def is_given_away(server: Server, rank: int) -> bool:
    return f"frontend {rank}: what it has left goes on at" in server.log()


async def ask(server: Server, method: str, path: str, body: Any = None) -> Any:
    """An answer of whichever frontend takes the connection, as soon as there is one."""
    while True:
        async with server.client() as client:
            answer = await client.request(method, path, json=body)
        if answer.status_code != 503:
            assert answer.status_code == 200, answer.text
            return answer.json()


async def from_both(ask_one: Callable[[int], Awaitable[Any]]) -> list[Any]:
    """Four responses at least, by number; the load decides who gets the next connection."""
    found: list[Any] = []
    while len(found) < 4 or len({response["id"][5:7] for response in found}) < 2:
        found.append(await ask_one(len(found)))
    return found


async def test_every_kind_of_stream_goes_on_at_another_one(tmp_path: pathlib.Path) -> None:
    with trio.fail_after(3 * DEADLINE_S):
        async with open_server(tmp_path, "--frontends", "2", "--restart-limit", "0") as server:
            await server.wait_linked(2, 1)
            wanted = await ask_all(server, "undisturbed")
            found = await ask_all(server, "given up", lambda: give_up(server, 0))
            assert is_given_away(server, 0)
            for name, stream in wanted.items():
                assert found[name].whole() == stream.whole(), name
            connections = {stream.connections for stream in found.values()}
            assert connections == {1, 2}, "those of the other frontend are not disturbed"


@pytest.mark.parametrize("is_on_disk", [False, True], ids=["in memory", "on disk"])
async def test_what_it_promised_holds(tmp_path: pathlib.Path, is_on_disk: bool) -> None:
    """What runs in the background, had ended, is continued or has a key; the host dies as well."""
    options = ["--frontends", "2", "--restart-limit", "0"]
    options += ["--journal", str(tmp_path / "journal")] * is_on_disk
    with trio.fail_after(3 * DEADLINE_S):
        async with open_server(tmp_path, *options) as server:
            await server.wait_linked(2, 1)
            undisturbed = response_in(await send(server, "undisturbed"))
            short, background = {**STORY, "max_output_tokens": 20}, {**STORY, "background": True}

            async def ask_with_key(number: int) -> Any:
                return response_in(await send(server, f"key-{number}", **short))

            ended = await from_both(lambda _: ask(server, "POST", PATH, short))
            running = await from_both(lambda _: ask(server, "POST", PATH, background))
            keyed = await from_both(ask_with_key)
            executed = 1 + len(ended) + len(running) + len(keyed)

            await give_up(server, 0)
            await wait_until(lambda: is_given_away(server, 0), "its home is given away")
            for response in ended:
                assert await ask(server, "GET", f"{PATH}/{response['id']}") == response
                more = {**short, "previous_response_id": response["id"], "input": "And then?"}
                assert (await ask(server, "POST", PATH, more))["status"] == "incomplete"
            executed += len(ended)
            pid = (await server.pids())["frontend 1"]
            os.kill(pid, signal.SIGKILL)  # no fault of its own: its next life has both
            for response in running[1:]:
                found: dict[str, Any] = {"status": "in_progress"}
                while found["status"] == "in_progress":
                    found = await ask(server, "GET", f"{PATH}/{response['id']}")
                assert found["output"][0]["content"] == undisturbed["output"][0]["content"]
            cancelled = await ask(server, "POST", f"{PATH}/{running[0]['id']}/cancel")
            assert cancelled["id"] == running[0]["id"]
            for number, response in enumerate(keyed):
                assert response_in(await send(server, f"key-{number}", **short)) == response
            await check_added(server, executed)  # nothing was executed twice


async def test_one_that_is_revived_begins_a_home_of_its_own(tmp_path: pathlib.Path) -> None:
    with trio.fail_after(2 * DEADLINE_S):
        async with open_server(tmp_path, "--frontends", "2", "--restart-limit", "0") as server:
            await server.wait_linked(2, 1)
            ended = await from_both(lambda _: ask(server, "POST", PATH, STORY))
            await give_up(server, 0)
            await wait_until(lambda: is_given_away(server, 0), "its home is given away")
            await ask_run(server.run_folder(), ControlCall.RESTART, Place(Role.FRONTEND, 0))
            await server.wait_linked(2, 1)
            for response in ended:
                assert await ask(server, "GET", f"{PATH}/{response['id']}") == response
            later = await from_both(lambda _: ask(server, "POST", PATH, STORY))
            assert {response["id"][5:7] for response in later} == {"01", "02"}
            for response in later:
                assert await ask(server, "GET", f"{PATH}/{response['id']}") == response
