"""Engines inside this process, behind memory channels, for a runtime without child processes.

For notebooks, tests of a program, and machines on which no process may be started. Nothing is
isolated: an engine that fails ends the block with its error, a step cannot be given up, and what an
executor sets for a whole process (threads of torch, say) it sets for the caller's.
"""

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any

import attrs

from ...engine.config import EngineSettings
from ...engine.errors import InvalidParameter
from ...engine.messages import ENGINE_TO_FRONTEND, FRONTEND_TO_ENGINE
from ...nurseries.tasks.service import open_service
from ...transports.codec import Codec
from ...transports.links.channel import Peer
from ...transports.links.memory_channel import MemoryHub, MemoryMesh
from ..config import RuntimeSettings
from ..fleet.membership import EngineDirectory
from .core_client import CoreClient

# By name, not by import: this floor knows an engine's public face only.
ENGINE_MODULE = "triolet.engine.process.inproc"
# Fields of the settings that ask for processes.
_OF_PROCESSES = ("spare_engines", "spare_frontends", "frontends")
_OF_WORKERS = ("workers", "record_steps", "null_step_s")


def make_mesh() -> MemoryMesh:
    """Make the mesh of a frontend and engines in one process."""
    return MemoryMesh(Codec(*FRONTEND_TO_ENGINE), Codec(*ENGINE_TO_FRONTEND))


def check_inproc(settings: RuntimeSettings) -> None:
    """Raises `InvalidParameter` for settings that only processes can carry out."""
    for tree, names in ((settings, _OF_PROCESSES), (settings.engine, _OF_WORKERS)):
        fields = attrs.fields_dict(type(tree))
        values = attrs.asdict(tree, recurse=False)
        for name in names:
            if values[name] != fields[name].default:
                raise InvalidParameter(name, "needs processes; leave it out with in_process=True")
    if settings.hosts.are_wanted:
        name = "join_port" if settings.hosts.join_port else "launcher"
        raise InvalidParameter(name, "needs processes; leave it out with in_process=True")


@attrs.frozen(eq=False)
class InprocEngines:
    """Engines that run; `servers` are `engine.server.EngineServer`s by rank."""

    directory: EngineDirectory = attrs.field(factory=EngineDirectory)
    servers: dict[int, Any] = attrs.field(factory=dict)


@asynccontextmanager
async def open_inproc_engines(
    settings: RuntimeSettings,
    mesh: MemoryMesh,
    hub: MemoryHub,
    client: CoreClient,
    *,
    frontend: Peer,
    wrap: Callable[[Any], Any] = lambda worker: worker,
) -> AsyncIterator[InprocEngines]:
    """Load all engines, connect them to the `hub` of `frontend`, and list each for its `client`.

    `wrap` is that of `engine.process.inproc.open_inproc_engine`. Raises what that raises; what an
    engine raises later ends the body.
    """
    engines = InprocEngines()
    async with AsyncExitStack() as stack:
        for rank, epoch in zip(range(settings.engines), itertools.count(frontend.epoch + 1)):
            me = Peer("engine", rank, epoch)
            client.apply_membership(engines.directory.handle_starting(rank, epoch))
            opened = _open_engine(settings.engine, mesh, me, wrap)
            engine, spoke = await stack.enter_async_context(opened)
            engines.servers[rank] = engine.server
            spoke.connect(frontend, *hub.endpoints)
            client.apply_membership(engines.directory.handle_ready(rank, engine.ready))
        yield engines


@asynccontextmanager
async def _open_engine(
    settings: EngineSettings, mesh: MemoryMesh, me: Peer, wrap: Callable[[Any], Any]
) -> AsyncIterator[tuple[Any, Any]]:
    open_inproc_engine = vars(import_module(ENGINE_MODULE))["open_inproc_engine"]
    spoke = mesh.open_spoke(me)
    async with (
        open_service(spoke.run_deadlines, name="link-deadlines"),
        open_service(spoke.run_output, name="output-socket-thread"),
        open_service(spoke.run_input, name="input-socket-thread"),
        open_inproc_engine(settings, spoke, name=str(me), wrap=wrap) as engine,
    ):
        yield engine, spoke
