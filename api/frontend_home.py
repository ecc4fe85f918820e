"""The home of a frontend process: its links, ledger, journal, connections and responses.

What the life before left in its journal is taken over when it is opened; the API goes on with it
when its connections are served.
"""

import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio

from ..nurseries.tasks.changes import Changes
from ..nurseries.tasks.parking import Doorbell
from ..nurseries.tasks.service import open_service
from ..runtime.config import JournalSettings
from ..runtime.frontend.adoption import AdoptedStream, adopt_streams
from ..runtime.frontend.client_tasks import run_adopted_forms
from ..runtime.frontend.frontend import Frontend
from ..runtime.hosts.remote_side import remote_side
from ..runtime.journal.disk_file import open_disk_journal
from ..runtime.journal.journal import Journal, open_journal
from ..runtime.journal.records import JournalUnreadable
from ..runtime.journal.writer import JournalLimits
from ..runtime.messages import EngineMembership, ForeignCall, FrontendInit, FrontendReady
from ..runtime.runtime import make_frontend, open_frontend_hub, open_frontend_services
from ..runtime.text.input_processor import InputProcessor
from ..transports.links.channel import Peer
from ..transports.links.zmq_channel import HubChannel, HubSide
from ..transports.takeover.memory import map_slots, refuse_slot
from .application import Application
from .http.held import HeldSlots
from .root_calls import RootCalls
from .serving.server import QueueSource, open_queue_source
from .settings import ServerSettings
from .span_export import make_tracer, open_span_export
from .streams.foreign import ForeignStreams
from .viewers import Viewers

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class FrontendHome:
    """Parts of the home of this process."""

    frontend: Frontend
    application: Application
    source: QueueSource
    # Streams of the life before this one.
    adopted: list[AdoptedStream]
    # Slots of connections that have ended, and the root does not know it; bounded by the slots.
    ended: list[int]
    # Addresses at which engines reach this frontend.
    where: FrontendReady
    # Set when responses of the life before can be read.
    _has_adopted: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def adopt(self) -> None:
        """Rebuild what clients ask for; calls of other frontends and a drain wait meanwhile."""
        keep_s = self.frontend.settings.journal.adopted_keep_s
        began_s = trio.current_time()
        await self.application.adopt(self.adopted, keep_s)
        if self.adopted:
            took_s = trio.current_time() - began_s
            logger.info("%d streams can be read on after %.2f s", len(self.adopted), took_s)
        self.adopted.clear()
        self._has_adopted.set()

    async def carry_out(self, call: ForeignCall) -> Any:
        """Carry out another frontend's call for a response here. Raises `ApiError`."""
        await self._has_adopted.wait()
        return await self.application.carry_out(call)

    async def drain(self, *, hands_over: bool) -> None:
        """Task: see `Application.drain`."""
        await self._has_adopted.wait()
        grace_s = self.frontend.settings.times.grace_s
        await self.application.drain(grace_s, hands_over=hands_over)


@asynccontextmanager
async def open_frontend_home(
    init: FrontendInit,
    settings: ServerSettings,
    inputs: InputProcessor,
    fds: Mapping[str, int],
    *,
    foreign: ForeignStreams,
    root: RootCalls,
    viewers: Viewers,
    changes: Changes,
) -> AsyncIterator[FrontendHome]:
    """The home of this process, with its descriptors by name, which the caller owns.

    Engines hear of it when the root lists its endpoints; `changes` are notified of all that comes
    and goes.
    """
    runtime, me = settings.runtime, Peer("frontend", init.rank, init.epoch)
    remote = remote_side(runtime.hosts)
    async with open_frontend_hub(init.run_id, me, remote) as channel:
        frontend = make_frontend(
            *(Frontend, runtime, channel, inputs),
            term=init.epoch,
            rank=init.rank,
            on_load=changes.notify,
        )
        url, has_spans = settings.serve.otlp_endpoint, Doorbell()
        tracer = make_tracer(url, has_spans.ring)
        if tracer is not None:
            frontend.client.ledger.begin_trace = tracer.begin
        opening = _open_journal(fds.get("journal"), init.epoch, runtime.journal)
        with ExitStack() as owned:
            async with opening as (journal, fault):
                adopted = _adopt(frontend, journal, init.engines, init.died_ns)
                ended = list[int]()
                application = Application(
                    frontend,
                    settings.serve,
                    foreign,
                    root,
                    viewers,
                    journal=journal,
                    journal_fault=fault,
                    slots=_enter_slots(owned, fds.get("connections"), ended),
                    hands=inputs.hands,
                    changes=changes,
                )
                async with (
                    application.totals.open_page(fds.get("counters"), init.rank),
                    open_span_export(
                        tracer, has_spans, url, os.environ, counters=application.counters
                    ),
                    open_frontend_services(channel, frontend.client),
                    open_service(
                        partial(run_adopted_forms, frontend.client, inputs.forms),
                        name="adopted-forms",
                    ),
                    open_queue_source() as source,
                ):
                    where = _where(channel, remote, has_slots=application.slots is not None)
                    yield FrontendHome(frontend, application, source, adopted, ended, where)


def _where(channel: HubChannel, remote: HubSide | None, *, has_slots: bool) -> FrontendReady:
    """READY of this frontend: its addresses for engines, here and of other machines."""
    key = b"" if remote is None or remote.keys is None else remote.keys.public
    input_endpoint, output_endpoint = channel.endpoints
    return FrontendReady(
        input_endpoint=input_endpoint,
        output_endpoint=output_endpoint,
        has_slots=has_slots,
        remote_endpoints=channel.remote_endpoints,
        server_key=key,
    )


def _adopt(
    frontend: Frontend, journal: Journal | None, engines: EngineMembership, died_ns: int
) -> list[AdoptedStream]:
    """Go on with what the life before has left, where engines have it."""
    frontend.client.journal, frontend.client.is_rebuilding = journal, True
    frontend.client.apply_membership(engines)
    began_s = trio.current_time()
    adopted = [] if journal is None else adopt_streams(frontend, journal, died_ns)
    frontend.client.handle_rebuilt()
    if adopted:
        took_s = trio.current_time() - began_s
        logger.info("ledger of %d streams rebuilt in %.2f s", len(adopted), took_s)
    return adopted


@asynccontextmanager
async def _open_journal(
    fd: int | None, term: int, settings: JournalSettings
) -> AsyncIterator[tuple[Journal | None, str]]:
    """The journal behind this descriptor, if there is one; or why it cannot be used.

    Then streams go on without.
    """
    limits = JournalLimits(bytes_max=settings.bytes_max)
    async with AsyncExitStack() as opened:
        journal, fault = None, ""
        try:
            if fd is not None and settings.folder:
                keeping = open_disk_journal(fd, term, limits, settings.sync_ms / 1000)
                journal = await opened.enter_async_context(keeping)
            elif fd is not None:
                journal = opened.enter_context(open_journal(fd, term, limits))
        except (JournalUnreadable, OSError) as error:
            fault = str(error)
            logger.error("the journal of this frontend cannot be used: %s", error)
        yield journal, fault


def _enter_slots(owned: ExitStack, fd: int | None, ended: list[int]) -> HeldSlots | None:
    """The slots in this memory, until the stack is left; None without."""
    if fd is None:
        return None
    slots = owned.enter_context(map_slots(fd))
    return HeldSlots(slots.view, ended.append, partial(refuse_slot, fd))
