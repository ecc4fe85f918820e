"""The server that a load goes to: one that runs, or one that is started for the load alone.

One that is started has this process for its root, so that nothing outlives the command; its share
of the client's row is some tasks that sleep. Must not know loads.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import attrs
import trio

from ...api.commands.options import EngineOptions, ServeOptions
from ...api.commands.plan import make_plan
from ...engine.errors import InvalidParameter
from ...nurseries.tasks.error_groups import single_errors_unwrapped
from ...runtime.events import OnEvent
from ...runtime.processes.root import Root
from ...runtime.processes.run_folder import live_runs
from .client import Target

# What is cut short when the load is over has nothing in flight.
_GRACE_S = 0.0


@attrs.frozen
class PressedServer:
    """Where requests go, and the server's root process; 0 where it is not of this machine."""

    target: Target
    pid: int


@asynccontextmanager
async def open_pressed_server(
    model: str | None,
    *,
    url: str,
    api_key: str,
    engine: dict[str, Any],
    engines: int,
    frontends: int,
    on_event: OnEvent,
) -> AsyncIterator[PressedServer]:
    """The server at `url`; without one a server of `model`, which ends with the block.

    Raises `InvalidParameter` and what the server's root raises.
    """
    if url:
        target = target_of(url, api_key)
        pids = [run.facts.pid for run in live_runs() if run.facts.url == url.rstrip("/")]
        yield PressedServer(target, pids[0] if pids else 0)
        return
    options = ServeOptions(
        port=0,
        engines=engines,
        frontends=frontends,
        spare_engines=0,
        spare_frontends=0,
        grace=_GRACE_S,
    )
    plan = make_plan(model, options, EngineOptions(**engine))
    with single_errors_unwrapped():
        async with trio.open_nursery() as nursery:
            address = await nursery.start(Root(plan, on_event).run, name="server")
            yield PressedServer(target_of(address, ""), os.getpid())
            nursery.cancel_scope.cancel("the load is over")


def target_of(url: str, key: str) -> Target:
    """Raises `InvalidParameter` for what is no plain `http://host:port`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError as error:
        raise InvalidParameter("url", f"is wrong: {error}") from error
    if parts.scheme != "http" or not host or parts.path not in ("", "/"):
        raise InvalidParameter("url", f"must be http://host:port, not {url}")
    return Target(host=host, port=port, key=key)
