"""The server's edge on a real port of this process, with a made-up generator behind it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from triolet.api.serving.server import ListenerSource, serve_connections

from ...api.fakes import FakeGenerator, make_application

# Nothing here takes as long, even on a busy machine.
DEADLINE_S = 60.0


@asynccontextmanager
async def open_small_server(generator: FakeGenerator) -> AsyncIterator[int]:
    """Its port."""
    async with await ListenerSource.open() as source, trio.open_nursery() as nursery:
        await nursery.start(serve_connections, source, make_application(generator))
        yield source.address[1]
        nursery.cancel_scope.cancel("the test is over")
