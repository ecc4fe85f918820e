"""Limits of a process that leave no room to hold connections: fewer are held, and it is said.

A server is started by a shell that sets the limit, as users and service managers do.
"""

import os
import pathlib
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
import trio

from .server import DEADLINE_S, Server, open_server, wait_until

pytestmark = pytest.mark.slow

# KiB: a frontend of 0.1 GiB, and slots of 16 MiB each in three quarters of it.
ADDRESS_SPACE_KIB = 2 * 2**20
# More than that has room for, and as many as it surely has room for.
CLIENTS, HELD_LEAST = 120, 48
# The root has nearly so many of its own.
DESCRIPTORS = 96


async def test_a_limit_of_address_space_leaves_connections_held(tmp_path: pathlib.Path) -> None:
    """Those that were there first go on over a kill; the others are named, and end with it."""
    limits = f"ulimit -v {ADDRESS_SPACE_KIB}"
    async with limited_server(tmp_path, limits, CLIENTS) as (server, streams):
        assert (await degraded(server)).endswith("the limit of address space is near (ulimit -v)")
        assert server.log().count("connections end with this frontend") == 1
        os.kill((await server.pids())["frontend 0"], signal.SIGKILL)
        answered = 0
        for stream in streams:
            try:
                await stream.send_all(b"connection: close\r\n\r\n")
                answered += (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
            except trio.BrokenResourceError:
                pass  # it was not held
        assert HELD_LEAST <= answered < CLIENTS


async def test_a_limit_of_descriptors_that_leaves_few_held_is_named(tmp_path: pathlib.Path) -> None:
    limits = f"ulimit -n {DESCRIPTORS}"
    async with limited_server(tmp_path, limits, DESCRIPTORS // 2) as (server, _):
        said = f"the server may open {DESCRIPTORS} descriptors only (ulimit -n)"
        assert (await degraded(server)).endswith(said)


@asynccontextmanager
async def limited_server(
    folder: pathlib.Path, limits: str, clients: int
) -> AsyncIterator[tuple[Server, list[trio.SocketStream]]]:
    """With so many connections that have begun a request, of which some are not held."""
    with trio.fail_after(3 * DEADLINE_S):
        async with (
            open_server(folder, "--frontends", "1", limits=limits) as server,
            AsyncExitStack() as opened,
        ):
            await server.wait_linked(1, 1)
            url = httpx.URL(server.url)
            assert url.port is not None
            streams = []
            for _ in range(clients):
                stream = await trio.open_tcp_stream(url.host, url.port)
                streams.append(await opened.enter_async_context(stream))
                await stream.send_all(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n")

            async def is_named() -> bool:
                return bool(await degraded(server))

            await wait_until(is_named, "some are not held")
            yield server, streams


async def degraded(server: Server) -> str:
    """What `/health` calls so."""
    async with server.client() as client:
        return "; ".join((await client.get("/health")).json()["degraded"])
