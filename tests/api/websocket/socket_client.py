"""A WebSocket client on a memory connection that an application serves."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from triolet.api.application import Application
from triolet.fuzz.doubles.clients import TERMINALS as TERMINALS
from triolet.fuzz.doubles.clients import SocketClient as SocketClient

from ..fakes import open_connection


@asynccontextmanager
async def open_socket(
    application: Application, headers: dict[str, str] | None = None
) -> AsyncIterator[SocketClient]:
    async with open_connection(application) as stream:
        client = SocketClient(stream)
        assert await client.handshake(headers=headers) == 101
        yield client
