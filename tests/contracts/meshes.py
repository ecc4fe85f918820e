"""Makers of meshes for the channel contract, usable by tests of other floors too."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import trio

from triolet.fuzz.doubles.link_faults import NthFault
from triolet.tests.contracts.channel import HUB, SPOKES, Mesh, Numbered
from triolet.transports.codec import Codec
from triolet.transports.endpoint import abstract_endpoint
from triolet.transports.links.channel import RunnableChannel
from triolet.transports.links.link_header import LinkSettings
from triolet.transports.links.memory_channel import MemoryMesh
from triolet.transports.links.zmq_channel import ZmqSettings, open_hub, open_spoke

CODEC = Codec(Numbered)


@asynccontextmanager
async def running(*channels: RunnableChannel) -> AsyncIterator[None]:
    """Both tasks of each channel, until the block ends."""
    async with trio.open_nursery() as nursery:
        for channel in channels:
            await nursery.start(_run_input, channel)
            await nursery.start(_run_output, channel)
        yield
        nursery.cancel_scope.cancel("the test is over")


async def _run_input(channel: RunnableChannel, task_status: trio.TaskStatus[str]) -> None:
    await channel.run_input(task_status=task_status)


async def _run_output(channel: RunnableChannel, task_status: trio.TaskStatus[str]) -> None:
    await channel.run_output(task_status=task_status)


@asynccontextmanager
async def memory_mesh(
    *faults: NthFault, settings: LinkSettings | None = None
) -> AsyncIterator[Mesh]:
    """The fake, with faults if wanted."""
    mesh = MemoryMesh(CODEC, CODEC, settings or LinkSettings(), list(faults))
    hub = mesh.open_hub(HUB)
    spokes = tuple(mesh.open_spoke(peer) for peer in SPOKES)
    async with running(hub, *spokes):
        yield Mesh(hub, spokes)


def _endpoints() -> tuple[str, str]:
    run_id = secrets.token_hex(8)
    return (
        abstract_endpoint(run_id, "frontend", 0, 7, socket="input"),
        abstract_endpoint(run_id, "frontend", 0, 7, socket="output"),
    )


@asynccontextmanager
async def zmq_mesh(
    settings: ZmqSettings | None = None, endpoints: tuple[str, str] | None = None
) -> AsyncIterator[Mesh]:
    """The real one, over abstract Unix sockets unless others are given."""
    async with AsyncExitStack() as stack:
        input_endpoint, output_endpoint = endpoints or _endpoints()
        hub = await stack.enter_async_context(
            open_hub(
                HUB,
                CODEC,
                CODEC,
                input_endpoint=input_endpoint,
                output_endpoint=output_endpoint,
                settings=settings,
            )
        )
        spokes = [
            await stack.enter_async_context(open_spoke(peer, CODEC, CODEC, settings=settings))
            for peer in SPOKES
        ]
        await stack.enter_async_context(running(hub, *spokes))
        yield Mesh(hub, tuple(spokes))


def tcp_mesh() -> AbstractAsyncContextManager[Mesh]:
    """The real one over TCP, on ports that the kernel chooses."""
    anywhere = "tcp://127.0.0.1:0"
    return zmq_mesh(endpoints=(anywhere, anywhere))
