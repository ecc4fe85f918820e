"""Publication: subscribers and askers over real sockets, and endpoints that are taken."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import zmq

from triolet.tests.leaks import check_no_leaks
from triolet.transports.endpoint import endpoint_of_rank
from triolet.transports.publication import (
    Publication,
    PublicationUnavailable,
    open_publication,
)

DEADLINE_S = 20.0


@asynccontextmanager
async def open_reader(kind: int, endpoint: str) -> AsyncIterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        if kind == zmq.SUB:
            socket.setsockopt_string(zmq.SUBSCRIBE, "kv-events")
        socket.connect(endpoint)
        yield socket


async def receive(socket: zmq.Socket[bytes]) -> list[bytes]:
    socket.setsockopt(zmq.RCVTIMEO, int(DEADLINE_S * 1000))
    return await trio.to_thread.run_sync(socket.recv_multipart)


async def test_what_is_published_is_read_and_a_question_is_answered() -> None:
    name = f"ipc://@triolet-test-{secrets.token_hex(8)}"
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with (
            open_publication(name, f"{name}-past", high_water=4, replay_high_water=4) as ours,
            open_reader(zmq.SUB, name) as reader,
            open_reader(zmq.DEALER, f"{name}-past") as asker,
        ):
            while not reader.poll(20):  # until the subscription has come
                ours.publish((b"kv-events", b"1"))
            assert await receive(reader) == [b"kv-events", b"1"]
            asker.send_multipart([b"", b"question"])
            who, *frames = await ours.question()
            assert frames == [b"", b"question"]
            ours.answer((who, b"", b"answer"))
            assert await receive(asker) == [b"", b"answer"]


async def test_an_endpoint_is_bound_once() -> None:
    name = f"ipc://@triolet-test-{secrets.token_hex(8)}"
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_publication(name, "", high_water=4, replay_high_water=4) as ours:
            assert isinstance(ours, Publication)
            assert not ours.answers
            with pytest.raises(PublicationUnavailable, match="in use"):
                async with open_publication(name, "", high_water=4, replay_high_water=4):
                    raise AssertionError("it is bound")


@pytest.mark.parametrize(
    ("endpoint", "rank", "found"),
    [
        ("tcp://127.0.0.1:5557", 0, "tcp://127.0.0.1:5557"),
        ("tcp://127.0.0.1:5557", 2, "tcp://127.0.0.1:5559"),
        ("ipc:///run/kv", 1, "ipc:///run/kv_dp1"),
    ],
)
def test_each_engine_has_an_endpoint_of_its_own(endpoint: str, rank: int, found: str) -> None:
    assert endpoint_of_rank(endpoint, rank) == found
