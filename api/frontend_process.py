"""The frontend process: connections from the root, requests to the engines, answers between.

Composition only: the runtime's machines behind the application's routes. Connections come as
descriptors over the control socket, engines' addresses by membership. Must not know how either is
accepted or spawned.
"""

import os
import socket
from collections.abc import Sequence
from functools import partial

import attrs
import cattrs
import msgspec
import trio

from ..engine.messages import (
    ENGINE_TO_FRONTEND,
    FRONTEND_TO_ENGINE,
    Drain,
    TreeReply,
    TreeRequest,
)
from ..nurseries.background import start_background_task
from ..nurseries.child import ChildFds, run_child
from ..nurseries.service import open_service
from ..nurseries.task_tree import ProcessTree, task_tree
from ..runtime.config import RuntimeSettings
from ..runtime.frontend import Frontend
from ..runtime.input_processor import InputProcessor
from ..runtime.messages import (
    FRONTEND_TO_ROOT,
    ROOT_TO_FRONTEND,
    EngineMembership,
    FrontendInit,
    FrontendLoad,
    FrontendReady,
    PassConnection,
)
from ..runtime.runtime import make_frontend, open_frontend_services
from ..transports.channel import Peer
from ..transports.codec import Codec
from ..transports.control_channel import ControlChannel
from ..transports.control_handshake import ChildHandshake, perform_child_handshake
from ..transports.endpoint import abstract_endpoint
from ..transports.passed_fds import close_fds
from ..transports.zmq_channel import open_hub
from .application import Application, ServeSettings
from .connection_source import QueueSource, open_queue_source
from .server import serve_connections

# The root balances by these reports; between two of them it counts what it passed itself.
LOAD_PERIOD_S = 0.02


@attrs.frozen(kw_only=True)
class FrontendSettings:
    """What a frontend needs to know, as `FrontendInit.settings` carries it."""

    runtime: RuntimeSettings
    serve: ServeSettings


def settings_to_text(settings: FrontendSettings) -> str:
    """JSON text for INIT."""
    return msgspec.json.encode(cattrs.unstructure(settings)).decode()


def settings_of_text(text: str) -> FrontendSettings:
    """The settings in `text`; unknown fields are refused."""
    converter = cattrs.Converter(forbid_extra_keys=True)
    return converter.structure(msgspec.json.decode(text), FrontendSettings)


async def main(child: ChildFds) -> None:
    """Run one frontend until a stop is ordered. Whatever fails in it, fails it."""
    control = ControlChannel(child.control, sends=FRONTEND_TO_ROOT, receives=ROOT_TO_FRONTEND)
    handshake = await perform_child_handshake(control, "frontend")
    init = msgspec.msgpack.decode(handshake.init, type=FrontendInit)
    settings = settings_of_text(init.settings)
    await handshake.progress("load tokenizer", 0.0)
    inputs = InputProcessor.load(settings.runtime)
    me = Peer("frontend", init.rank, init.epoch)
    endpoints = [
        abstract_endpoint(init.run_id, me.role, me.rank, me.epoch, socket=name)
        for name in ("input", "output")
    ]
    hub = open_hub(
        me,
        Codec(*ENGINE_TO_FRONTEND),
        Codec(*FRONTEND_TO_ENGINE),
        input_endpoint=endpoints[0],
        output_endpoint=endpoints[1],
    )
    async with hub as channel:
        frontend = make_frontend(
            Frontend, settings.runtime, channel, inputs, epoch=me.epoch, rank=me.rank
        )
        frontend.client.apply_membership(init.engines)
        application = Application(frontend, settings.serve)
        async with (
            open_frontend_services(channel, frontend.client),
            open_queue_source() as source,
        ):
            process = FrontendProcess(init, control, handshake, frontend, application, source)
            where = FrontendReady(input_endpoint=endpoints[0], output_endpoint=endpoints[1])
            await process.run(where)


@attrs.define(eq=False)
class FrontendProcess:
    """What this process is made of."""

    init: FrontendInit
    control: ControlChannel
    handshake: ChildHandshake
    frontend: Frontend
    application: Application
    source: QueueSource
    _received: int = attrs.field(default=0, init=False)

    async def run(self, ready: FrontendReady) -> None:
        """Say READY, then serve connections until cancelled."""
        serve = partial(serve_connections, self.source, self.application)
        async with open_service(serve, name="connections"), trio.open_nursery() as nursery:
            await self.handshake.ready(msgspec.msgpack.encode(ready))
            await start_background_task(nursery, self._run_load, name="load-reports")
            await start_background_task(
                nursery, partial(self._run_control, nursery), name="control"
            )

    async def _run_control(
        self,
        nursery: trio.Nursery,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Background task `control`: the root's orders and connections."""
        task_status.started()
        while True:
            message, fds = await self.control.receive()
            match message:
                case PassConnection():
                    await self._take_connection(fds)
                case EngineMembership():
                    self.frontend.client.apply_membership(message)
                case Drain():
                    self.frontend.drain()
                    nursery.start_soon(self.application.drain, name="drain")
                case TreeRequest(call_id=call_id):
                    await self.control.send(TreeReply(call_id, self._tree_text()))
                case _:
                    raise AssertionError(f"the codec let {type(message).__name__} through")

    async def _take_connection(self, fds: Sequence[int]) -> None:
        self._received += 1
        first, *others = fds
        close_fds(others)
        connection = socket.socket(fileno=first)
        try:
            await self.source.put(connection)
        except BaseException:
            connection.close()
            raise

    async def _run_load(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Background task `load-reports`: tells the root when the counts changed."""
        task_status.started()
        sent: FrontendLoad | None = None
        while True:
            load = FrontendLoad(
                open_connections=self.application.counters.connections_active,
                open_streams=self.frontend.admission.active_requests,
                connections_received=self._received,
            )
            if load != sent:
                await self.control.send(load)
                sent = load
            await trio.sleep(LOAD_PERIOD_S)

    def _tree_text(self) -> str:
        tree = ProcessTree(
            f"frontend {self.init.rank}",
            os.getpid(),
            facts={
                "epoch": self.init.epoch,
                "connections": self.application.counters.connections_active,
                "requests": self.frontend.admission.active_requests,
            },
            tasks=task_tree(),
        )
        return msgspec.json.encode(tree).decode()


if __name__ == "__main__":
    run_child(main)
