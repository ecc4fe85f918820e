"""KV event publisher: what `core.kv_events` notes, sent to routers by ZeroMQ as vLLM sends it.

A message is three frames: topic, number (8 bytes, big-endian), batch. A question is a number in the
same form, answered by an empty frame and the message for each batch from it on, and at last by one
of no topic, -1 and no batch. A subscriber that is dead, slow or hostile holds up no step: nothing
waits for one.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NoReturn

import attrs
import trio

from ...nurseries.tasks.background import waiting_for
from ...nurseries.tasks.parking import Doorbell
from ...nurseries.tasks.service import open_service
from ...transports.endpoint import endpoint_of_rank
from ...transports.publication import Publication, PublicationUnavailable, open_publication
from ..config import EngineSettings
from ..core.kv_events import KVEventBatch, KVEventLog, KVEventStream

logger = logging.getLogger(__name__)
# The life before this one may be about to end, or another program has the port.
RETRY_S = 1.0
# After a batch, what changes is gathered: a batch costs some 100 µs of CPU, as a short step does.
# What a router does with a prefix, it does when the request is computed, which takes longer.
GATHER_S = 0.02
# Between the batches of an answer the loop is given away: some 100 µs.
_ANSWERS_PER_TURN = 16
NUMBER_BYTES = 8
_END = (-1).to_bytes(NUMBER_BYTES, "big", signed=True)


@attrs.define(eq=False)
class KVPublisher:
    """Publishes one engine's log; `run` is its background task. `news` is rung by the log."""

    log: KVEventLog
    news: Doorbell
    settings: EngineSettings
    rank: int
    wall_s: Callable[[], float] = time.time
    stream: KVEventStream = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        begin = int(self.wall_s() * 1e6)
        batches_max = self.settings.kv_events_replay_batches
        self.stream = KVEventStream(self.log, self.rank, begin, batches_max)
        self.news.ring()  # the life begins with a snapshot

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Background task `kv-events`: publishes what changes; never returns unless cancelled.

        An endpoint that is taken is tried again; the engine serves meanwhile, and the log keeps
        no more than a snapshot says. Resource handling: the sockets are closed at the end.
        """
        task_status.started()
        settings, is_logged = self.settings, False
        endpoints = [
            endpoint_of_rank(text, self.rank)
            for text in (settings.kv_events_endpoint, settings.kv_events_replay_endpoint)
        ]
        while True:
            try:
                async with open_publication(
                    *endpoints,
                    high_water=settings.kv_events_high_water,
                    # Twice a whole answer: ZeroMQ tells the sender of what was read by halves.
                    replay_high_water=2 * (settings.kv_events_replay_batches + 1),
                ) as publication:
                    logger.info("KV events are published on %s", endpoints[0])
                    await self._serve(publication)
            except PublicationUnavailable as error:
                if not is_logged:
                    logger.warning("%s; trying again", error)
                is_logged = True
            with waiting_for("an endpoint that is in use"):
                await trio.sleep(RETRY_S)

    async def _serve(self, publication: Publication) -> None:
        if not publication.answers:
            await self._publish_news(publication)
        run_replay = partial(self._run_replay, publication)
        async with open_service(run_replay, name="kv-events-replay"):
            await self._publish_news(publication)

    async def _publish_news(self, publication: Publication) -> NoReturn:
        while True:
            with waiting_for("changes of the KV cache"):
                await self.news.wait()
            self._publish(publication)
            with waiting_for("more changes"):
                await trio.sleep(GATHER_S)

    def _publish(self, publication: Publication) -> None:
        batch = self.stream.next_batch(self.wall_s())
        if batch is not None:
            publication.publish(self._message_of(batch))

    async def _run_replay(
        self, publication: Publication, *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Background task `kv-events-replay`: one question after the other."""
        task_status.started()
        while True:
            with waiting_for("subscribers that missed something"):
                frames = await publication.question()
            if len(frames) != 3 or frames[1] or len(frames[2]) != NUMBER_BYTES:
                continue  # no question of ours; its asker sees no answer
            await self._answer(publication, frames[0], int.from_bytes(frames[2], "big"))

    async def _answer(self, publication: Publication, asker: bytes, start: int) -> None:
        self._publish(publication)  # what is gathered comes before its answer, and in it
        if self.stream.lacks(start):
            self.log.ask_snapshot()
            self._publish(publication)
        for count, batch in enumerate(self.stream.replay(start), 1):
            publication.answer((asker, b"", *self._message_of(batch)))
            if count % _ANSWERS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
        publication.answer((asker, b"", b"", _END, b""))

    def _message_of(self, batch: KVEventBatch) -> tuple[bytes, bytes, bytes]:
        number = batch.number.to_bytes(NUMBER_BYTES, "big")
        return self.settings.kv_events_topic.encode(), number, batch.payload


@asynccontextmanager
async def open_kv_publisher(
    log: KVEventLog | None, news: Doorbell, settings: EngineSettings, rank: int
) -> AsyncIterator[None]:
    """Publish the log, which rings `news`, for the body of the block; nothing without one."""
    if log is None:
        yield
        return
    async with open_service(KVPublisher(log, news, settings, rank).run, name="kv-events"):
        yield
