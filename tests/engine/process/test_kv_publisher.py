"""KV event publisher over real sockets, read as a router does; nobody who reads holds it up."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
import zmq

from triolet.engine.config import EngineSettings
from triolet.engine.core.kv_events import KVEventLog, external_hash
from triolet.engine.process.kv_publisher import GATHER_S, KVPublisher, open_kv_publisher
from triolet.nurseries.tasks.parking import Doorbell
from triolet.tests.engine.core.test_kv_events import Index, name_of
from triolet.tests.leaks import check_no_leaks
from triolet.tests.transports.test_publication import open_reader, receive
from triolet.transports.endpoint import endpoint_of_rank

DEADLINE_S = 20.0


def make_settings(**fields: Any) -> EngineSettings:
    name = f"ipc://@triolet-test-{secrets.token_hex(8)}"
    return EngineSettings(
        kv_events_endpoint=name,
        kv_events_replay_endpoint=f"{name}-replay",
        kv_events_topic="kv-events",
        **fields,
    )


async def replay(socket: zmq.Socket[bytes], start: int) -> list[tuple[int, bytes]]:
    socket.send_multipart([b"", start.to_bytes(8, "big")])
    found: list[tuple[int, bytes]] = []
    while True:
        empty, topic, number, payload = await receive(socket)
        assert empty == b""
        if int.from_bytes(number, "big", signed=True) == -1:
            assert topic == payload == b""
            return found
        assert topic == b"kv-events"
        found.append((int.from_bytes(number, "big"), payload))


def make_log() -> tuple[KVEventLog, Doorbell]:
    news = Doorbell()
    return KVEventLog(4, "CPU", on_news=news.ring), news


@asynccontextmanager
async def asking(settings: EngineSettings) -> AsyncIterator[tuple[KVEventLog, zmq.Socket[bytes]]]:
    """A publisher's log, and the socket of one who asks it for what was."""
    log, news = make_log()
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with (
            open_kv_publisher(log, news, settings, 0),
            open_reader(zmq.DEALER, settings.kv_events_replay_endpoint) as asker,
        ):
            yield log, asker


async def test_a_router_that_comes_late_has_the_state_and_then_what_changes() -> None:
    settings, (log, news) = make_settings(), make_log()
    log.note_found(name_of(1))
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with (
            open_kv_publisher(log, news, settings, 1),
            open_reader(zmq.SUB, endpoint_of_rank(settings.kv_events_endpoint, 1)) as reader,
            open_reader(
                zmq.DEALER, endpoint_of_rank(settings.kv_events_replay_endpoint, 1)
            ) as asker,
        ):
            log.note_stored(name_of(2), None, [])
            index, last = Index(), -1
            for number, payload in await replay(asker, 0):
                index.read(payload)
                last = number
            # A subscription that has not arrived yet misses what is published: a gap shows it.
            while not reader.poll(20):
                log.note_stored(name_of(3 + len(log.held)), None, [])
                while log.has_news:
                    await trio.lowlevel.checkpoint()
            topic, number_bytes, payload = await receive(reader)
            assert topic == b"kv-events"
            for number, missed in await replay(asker, last + 1):
                if number < int.from_bytes(number_bytes, "big"):
                    index.read(missed)
            index.read(payload)
            while reader.poll(100):
                index.read((await receive(reader))[2])
            assert index.held == {external_hash(each) for each in log.held}


async def test_hostile_questions_have_no_answer_and_stop_nothing() -> None:
    async with asking(make_settings()) as (_, asker):
        for frames in ([b""], [b"", b"1"], [b"x", bytes(8)], [b"", bytes(8), b""], [b"", b""]):
            asker.send_multipart(frames)
        found = await replay(asker, 2**64 - 1)
        assert found == []
        assert len(await replay(asker, 0)) >= 1


async def test_a_dead_subscriber_bounds_what_is_kept_for_it() -> None:
    """Far more batches than it has room for; the log is emptied all the same."""
    settings = make_settings(kv_events_high_water=4, kv_events_replay_batches=8)
    async with (
        asking(settings) as (log, asker),
        open_reader(zmq.SUB, settings.kv_events_endpoint),
    ):
        for number in range(2000):
            log.note_stored(name_of(number), None, [])
            while log.has_news and number % 20 == 0:
                await trio.lowlevel.checkpoint()
        index = Index()
        found = await replay(asker, 0)
        for _, payload in found:
            index.read(payload)
        assert len(found) <= 8
        assert len(index.held) == 2000


async def test_what_changes_is_gathered_and_an_answer_has_all_of_it() -> None:
    async with asking(make_settings()) as (log, asker):
        await replay(asker, 0)
        began = trio.current_time()
        batches = 0
        for number in range(100):
            log.note_stored(name_of(number), None, [])
            await trio.testing.wait_all_tasks_blocked()
            batches += not log.has_news
        assert batches <= 1 + (trio.current_time() - began) / GATHER_S
        index = Index()
        for _, payload in await replay(asker, 0):
            index.read(payload)
        assert len(index.held) == 100


async def test_an_endpoint_in_use_is_tried_again(autojump_clock: trio.testing.MockClock) -> None:
    settings = make_settings()
    async with open_kv_publisher(*make_log(), settings, 0):
        publisher = KVPublisher(*make_log(), settings, 0)
        async with trio.open_nursery() as nursery:
            await nursery.start(publisher.run)
            await trio.sleep(10)
            assert publisher.stream.lacks(0), "it has published nothing, and goes on trying"
            nursery.cancel_scope.cancel()
