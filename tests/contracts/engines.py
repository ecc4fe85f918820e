"""Makers of engines for the engine contract: in this process over memory, and as real processes."""

import itertools
import json
import pathlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from triolet.engine.config import EngineSettings
from triolet.engine.control_messages import FrontendAddress
from triolet.engine.messages import ENGINE_TO_FRONTEND, FRONTEND_TO_ENGINE
from triolet.engine.process.inproc import open_inproc_engine
from triolet.nurseries.tasks.service import open_service
from triolet.runtime.config import RuntimeSettings
from triolet.runtime.events import ignore_event
from triolet.runtime.fleet.engine_fleet import EngineFleet
from triolet.runtime.fleet.fleet_parts import FleetParts
from triolet.runtime.fleet.membership import FrontendDirectory
from triolet.runtime.messages import EngineMembership
from triolet.tests.contracts.channel import running
from triolet.tests.contracts.engine import (
    DEADLINE_S,
    EOS,
    ME,
    MODEL_LEN,
    UNACKNOWLEDGED_MAX,
    VOCAB_SIZE,
    Caller,
    byte_tokenizer,
)
from triolet.transports.codec import Codec
from triolet.transports.endpoint import abstract_endpoint
from triolet.transports.links.channel import Peer
from triolet.transports.links.link_header import LinkSettings
from triolet.transports.links.memory_channel import MemoryMesh
from triolet.transports.links.zmq_channel import ZmqSettings, open_hub

LINK = LinkSettings(unacknowledged_max=UNACKNOWLEDGED_MAX)


def write_sizes(folder: pathlib.Path) -> pathlib.Path:
    """A model folder as the null executor and the grammar compiler need it: tokens are bytes."""
    sizes = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": MODEL_LEN, "eos_token_id": EOS}
    (folder / "config.json").write_text(json.dumps(sizes))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@asynccontextmanager
async def inproc_engine(
    folder: pathlib.Path, codec: Codec | None = None, link: LinkSettings = LINK
) -> AsyncIterator[Caller]:
    """The engine in this process, its link up; `codec` is that of the way to it."""
    mesh = MemoryMesh(codec or Codec(*FRONTEND_TO_ENGINE), Codec(*ENGINE_TO_FRONTEND), link)
    me = Peer("engine", 0, 2)
    hub, spoke = mesh.open_hub(ME), mesh.open_spoke(me)
    settings = EngineSettings(model=str(folder), executor="null")
    async with running(hub, spoke), open_inproc_engine(settings, spoke):
        spoke.connect(ME, *hub.endpoints)
        caller = Caller(hub, me)
        await caller.until(lambda: caller.resynced > 0)
        yield caller


@asynccontextmanager
async def process_engine(folder: pathlib.Path, workers: int) -> AsyncIterator[Caller]:
    """An engine process and its workers, kept by a fleet, its link up."""
    engine = EngineSettings(model=str(folder), executor="null", workers=workers)
    run_id, directory = secrets.token_hex(8), FrontendDirectory()
    endpoints = [
        abstract_endpoint(run_id, ME.role, ME.rank, ME.epoch, socket=name)
        for name in ("input", "output")
    ]
    fleet = EngineFleet(
        parts=FleetParts(
            RuntimeSettings(engine=engine),
            ignore_event,
            run_id=run_id,
            epochs=itertools.count(2),
        ),
        frontends=directory,
        on_membership=_ignore_membership,
    )
    hub = open_hub(
        ME,
        Codec(*ENGINE_TO_FRONTEND),
        Codec(*FRONTEND_TO_ENGINE),
        input_endpoint=endpoints[0],
        output_endpoint=endpoints[1],
        settings=ZmqSettings(link=LINK),
    )
    async with hub as channel, running(channel):
        directory.handle_ready(FrontendAddress(ME.rank, ME.epoch, *channel.endpoints))
        async with open_service(fleet.processes.run, name="engines"):
            caller = Caller(channel, Peer("engine", 0, 2))
            with trio.fail_after(DEADLINE_S):
                await caller.until(lambda: caller.resynced > 0)
            yield caller


def _ignore_membership(membership: EngineMembership) -> None:
    """The caller knows its engine."""
