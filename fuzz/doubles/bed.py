"""A whole frontend and its engines in one process, over the memory mesh: no process, no socket.

For tests and fuzzers of everything between a prompt and the schedule. The mesh can drop, double and
delay the n-th frame; engines can be lost. Tokens come from the null executor unless another one is
asked for, so they are exact.
"""

import pathlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from ...engine.config import EngineSettings
from ...engine.messages import ENGINE_TO_FRONTEND, FRONTEND_TO_ENGINE
from ...engine.process.server import EngineServer
from ...engine.sampling_params import SamplingParams
from ...runtime.config import InputLimits, RuntimeSettings, StreamSettings
from ...runtime.fleet.membership import EngineDirectory
from ...runtime.frontend.admission import ignore_load
from ...runtime.frontend.generation import GenerationStream
from ...runtime.frontend.inproc import open_inproc_engines
from ...runtime.runtime import Runtime, make_frontend, open_frontend_services
from ...runtime.text.input_processor import InputProcessor
from ...runtime.text.prompts import Prompt
from ...transports.codec import Codec
from ...transports.links.channel import Peer
from ...transports.links.link_header import LinkSettings
from ...transports.links.memory_channel import MemoryHub, MemoryMesh, MemorySpoke
from .link_faults import NthFault

ME = Peer("frontend", 0, 1)


@attrs.define(eq=False)
class Bed:
    """Frontend and engines under test, and the handles to disturb them."""

    frontend: Runtime
    mesh: MemoryMesh
    hub: MemoryHub
    directory: EngineDirectory
    servers: dict[int, EngineServer]

    @property
    def client(self) -> Any:
        """The frontend's side of its engines."""
        return self.frontend.client

    async def answer(
        self, prompt: Prompt, params: SamplingParams, **options: Any
    ) -> GenerationStream:
        """A request's stream, read to its end; `options` are `generate`'s."""
        async with self.frontend.generate(prompt, params, **options) as stream:
            return await stream.collect()

    async def wait_engines(self, count: int) -> None:
        """Wait until `count` engines take work."""
        while len(self.client.balancer.engines) < count:
            await self.client.engines_changed.wait()

    def lose_engine(self, rank: int, cause: str = "was killed by SIGKILL") -> None:
        """Publish, as the root does, that an engine's process is gone."""
        self.client.apply_membership(self.directory.handle_gone(rank, cause))

    def cut_off(self, frontend: Runtime) -> None:
        """Cut a frontend off as a kill does: nothing comes from it or arrives any more.

        Engines do not notice.
        """
        hub = frontend.client.channel
        assert isinstance(hub, MemoryHub)
        self.mesh._hubs.pop(hub.endpoints[0])
        hub.mesh = MemoryMesh(self.mesh.hub_to_spoke, self.mesh.spoke_to_hub)

    @asynccontextmanager
    async def open_successor(
        self, term: int, *, forgets: bool = True, on_load: Callable[[], None] = ignore_load
    ) -> AsyncIterator[Runtime]:
        """The next life of the frontend, whose ledger is to be rebuilt before it goes on.

        `forgets`: engines drop the link to the life before it, as they do when the root unlists it.
        """
        me, before = Peer(ME.role, ME.rank, term), Peer(ME.role, ME.rank, term - 1)
        hub, old = self.mesh.open_hub(me), self.frontend
        frontend = make_frontend(Runtime, old.settings, hub, old.inputs, term=term, on_load=on_load)
        assert isinstance(frontend, Runtime)
        frontend.client.is_rebuilding = True
        frontend.client.apply_membership(self.directory.snapshot())
        async with open_frontend_services(hub, frontend.client):
            for server in self.servers.values():
                server.handle_listed({me.rank: term}, [])
                assert isinstance(server.channel, MemorySpoke)
                if forgets:
                    server.channel.forget(before)
                server.channel.connect(me, *hub.endpoints)
            yield frontend

    async def settle(self) -> None:
        """Wait until what was sent has arrived, and engines have done what they can."""
        for _ in range(200):
            await trio.lowlevel.checkpoint()
        while any(server.core.has_work() for server in self.servers.values()):
            await trio.lowlevel.checkpoint()

    async def wait_quiet(self) -> None:
        """Wait until no engine has anything left to do."""
        while any(not is_quiet(server) for server in self.servers.values()):
            await trio.lowlevel.checkpoint()


def is_quiet(server: EngineServer) -> bool:
    """Nothing runs or waits, and every block is free."""
    counts = server.core.statistics()
    return counts.kv_blocks_free == counts.kv_blocks and not counts.running + counts.waiting


@asynccontextmanager
async def open_bed(
    folder: pathlib.Path,
    *faults: NthFault,
    engines: int = 1,
    link: LinkSettings | None = None,
    window_tokens: int = 256,
    inline_characters_max: int = 2048,
    wrap: Callable[[Any], Any] = lambda worker: worker,
    inputs: InputProcessor | None = None,
    **engine: Any,
) -> AsyncIterator[Bed]:
    """A frontend with its background tasks and `engines` engines that take work.

    Tasks are named as in the processes; the frontend's are further out than the engines'. One that
    ends fails the body with `ServiceEnded`. `wrap` is `open_inproc_engine`'s.
    """
    settings = RuntimeSettings(
        engine=EngineSettings(model=str(folder), **{"executor": "null", **engine}),
        engines=engines,
        streams=StreamSettings(window_tokens=window_tokens),
        input=InputLimits(inline_characters_max=inline_characters_max),
    )
    mesh = MemoryMesh(
        Codec(*FRONTEND_TO_ENGINE), Codec(*ENGINE_TO_FRONTEND), link or LinkSettings(), [*faults]
    )
    hub = mesh.open_hub(ME)
    frontend = make_frontend(
        Runtime, settings, hub, inputs or InputProcessor.load(settings), term=1
    )
    assert isinstance(frontend, Runtime)
    client = frontend.client
    async with (
        open_frontend_services(hub, client),
        open_inproc_engines(settings, mesh, hub, client, frontend=ME, wrap=wrap) as opened,
    ):
        bed = Bed(frontend, mesh, hub, opened.directory, opened.servers)
        await bed.wait_engines(engines)
        yield bed
