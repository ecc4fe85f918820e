"""How a server ends, and what its spares do: signals drain and abort, spares succeed the dead."""

import json
import os
import pathlib
import signal
from collections.abc import Container

import attrs
import pytest
import trio

from triolet.api.commands.serve import ONE_WISH_S

from .server import DEADLINE_S, Server, open_server, places, serve_command, wait_until
from .streams import SeenStream, body, open_socket, read_socket, read_sse

pytestmark = pytest.mark.slow

TOKENS = 40
# A stream has credit for so many; it stands still, however late a signal comes, until it gets more.
FIRST_TOKENS = 3
# Steps so long that the rest cannot be computed before a second signal or the grace time ends it.
STEP_S = 0.02
ENDLESS_TOKENS = 1500


@attrs.define(eq=False)
class HeldStream:
    """One stream on a WebSocket of its own, which goes on when it is let go."""

    seen: SeenStream = attrs.field(factory=SeenStream)
    let_go: trio.Event = attrs.field(factory=trio.Event)

    async def read(self, server: Server) -> None:
        """To the end of the connection."""
        wanted = body(TOKENS)
        wanted["runtime"]["credit"] = FIRST_TOKENS
        lanes: dict[str | None, SeenStream] = {None: self.seen}
        async with open_socket(server.url) as socket, trio.open_nursery() as nursery:
            await socket.send_message(json.dumps({"type": "response.create", **wanted}))
            nursery.start_soon(read_socket, socket, lanes)
            await self.let_go.wait()
            await socket.send_message(json.dumps({"type": "runtime.credit", "add": TOKENS}))


async def start_held_stream(nursery: trio.Nursery, server: Server) -> HeldStream:
    """A stream that has begun, as the root knows as well."""
    stream = HeldStream()
    nursery.start_soon(stream.read, server)
    await wait_until(lambda: len(stream.seen.token_ids) == FIRST_TOKENS, "the stream begins")

    async def is_reported() -> bool:
        return (await server.tree()).facts["open streams"] == 1

    await wait_until(is_reported, "the root knows of the stream, and of no other")
    return stream


async def start_stream(nursery: trio.Nursery, server: Server) -> SeenStream:
    """A stream that has begun and goes on by itself."""
    seen = SeenStream()

    async def read() -> None:
        async with server.client() as client:
            await read_sse(client, body(ENDLESS_TOKENS), seen)

    nursery.start_soon(read)
    await wait_until(lambda: len(seen.token_ids) > 2, "the stream begins")
    return seen


async def test_the_first_signal_drains(tmp_path: pathlib.Path) -> None:
    """Of the whole tree, as systemd sends it; `api/commands/test_serve.py` has others."""
    server_of_test = open_server(tmp_path, "1", "1", "600", executor="null")
    with trio.fail_after(2 * DEADLINE_S):
        async with server_of_test as server, trio.open_nursery() as nursery:
            async with server.client() as kept:
                assert (await kept.get("/ready")).status_code == 200
                stream = await start_held_stream(nursery, server)
                for pid in (await server.pids()).values():
                    os.kill(pid, signal.SIGTERM)
                await wait_until(lambda: "draining: 1 open stream" in server.log(), "it says so")
            refused = SeenStream()
            async with server.client() as client:
                await read_sse(client, body(3), refused)
            assert refused.broken or refused.error["code"] == "server_draining"
            assert len(stream.seen.token_ids) == FIRST_TOKENS
            stream.let_go.set()
            await stream.seen.ended.wait()
            assert stream.seen.last["type"] == "response.incomplete"  # at max_output_tokens
            assert len(stream.seen.token_ids) == TOKENS
            assert await server.wait_exited() == 0
            assert server.remains() == []
            assert "Traceback" not in server.log()
            assert server.log().splitlines()[-1].endswith("stopped: every process has ended")


async def test_the_second_signal_aborts(tmp_path: pathlib.Path) -> None:
    server_of_test = open_server(tmp_path, "1", "1", "600", executor="null", null_step_s=STEP_S)
    with trio.fail_after(2 * DEADLINE_S):
        async with server_of_test as server, trio.open_nursery() as nursery:
            seen = await start_stream(nursery, server)
            server.send_signal(signal.SIGINT)
            await wait_until(lambda: "draining" in server.log(), "it says so")
            due_s = trio.current_time() + ONE_WISH_S
            await wait_until(lambda: trio.current_time() > due_s, "it is a second wish")
            server.send_signal(signal.SIGTERM)
            assert await server.wait_exited() == 0
            await seen.ended.wait()
            assert len(seen.token_ids) < ENDLESS_TOKENS
            assert "aborting" in server.log()
            assert server.remains() == []
            assert "Traceback" not in server.log()


async def test_the_grace_time_ends_a_drain(tmp_path: pathlib.Path) -> None:
    server_of_test = open_server(tmp_path, "1", "1", "0.5", executor="null", null_step_s=STEP_S)
    with trio.fail_after(2 * DEADLINE_S):
        async with server_of_test as server, trio.open_nursery() as nursery:
            seen = await start_stream(nursery, server)
            server.send_signal(signal.SIGTERM)
            assert await server.wait_exited() == 0
            await seen.ended.wait()
            assert len(seen.token_ids) < ENDLESS_TOKENS
            assert "Traceback" not in server.log()


SPARES = {"spare frontend 0", "spare engine 0", "spare engine 0/worker 0"}


async def warm_spares(server: Server, *, but: Container[int] = ()) -> dict[str, int]:
    """{place: pid} once all of them are there, and the engine's is none of these processes."""
    found: dict[str, int] = {}

    async def are_warm() -> bool:
        processes = dict(places(await server.tree()))
        spares = {place: each for place, each in processes.items() if place in SPARES}
        found.clear()
        found.update({place: each.pid for place, each in spares.items()})
        phases = {each.facts["phase"] for place, each in spares.items() if "/" not in place}
        return set(spares) == SPARES and phases == {"warm"} and found["spare engine 0"] not in but

    await wait_until(are_warm, "spares wait")
    return found


async def test_spares_succeed_are_replaced_and_go_with_the_root(tmp_path: pathlib.Path) -> None:
    with trio.fail_after(2 * DEADLINE_S):
        async with open_server(tmp_path, "--executor", "null") as server:
            spares = await warm_spares(server)
            # One whose worker dies is of no use, and is replaced without a word.
            os.kill(spares["spare engine 0/worker 0"], signal.SIGKILL)
            again = await warm_spares(server, but={spares["spare engine 0"]})
            assert again["spare frontend 0"] == spares["spare frontend 0"]
            # The processes that waited are those that serve next.
            pids = await server.pids()
            os.kill(pids["engine 0"], signal.SIGKILL)
            os.kill(pids["frontend 0"], signal.SIGKILL)
            await warm_spares(server, but=again.values())
            now = await server.pids()
            for place in ("frontend 0", "engine 0", "engine 0/worker 0"):
                assert now[place] == again[f"spare {place}"]
            assert await server.is_ready()
            server.send_signal(signal.SIGKILL)
            await server.wait_exited()
            await wait_until(
                lambda: not [left for left in server.remains() if "run folder" not in left],
                "nothing is left",
            )
            assert "spare" not in server.log()


async def test_a_server_whose_standard_files_are_closed_serves(tmp_path: pathlib.Path) -> None:
    server = Server(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *serve_command()], tmp_path)

    async def is_serving() -> bool:
        assert server.popen.poll() is None, "it has ended"
        if not list((tmp_path / "triolet").glob("*/run.json")):
            return False
        facts = server.run_folder().facts
        server.url, server.run_id = facts.url, facts.run_id
        return await server.is_ready()

    with trio.fail_after(2 * DEADLINE_S):
        server.spawn()
        try:
            await wait_until(is_serving, "it serves without a log")
        finally:
            with trio.CancelScope(shield=True):
                await server.stop()
