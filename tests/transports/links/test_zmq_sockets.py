"""The sockets' options, read back from libzmq, and who may bind and connect."""

import os
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from triolet.transports.array import Frame
from triolet.transports.endpoint import BadEndpoint, abstract_endpoint
from triolet.transports.links.zmq_sockets import (
    Addressee,
    BoundEnd,
    EndpointInUse,
    Enveloped,
    HeldSockets,
    Received,
    Socket,
    SocketSettings,
    Target,
    bind_socket,
    connect_socket,
)

SETTINGS = SocketSettings(high_water=10, linger_ms=0)
# Only a failing test meets it.
PATIENCE_MS = 60_000


class KeepingContext(zmq.Context[Socket]):
    """Keeps the sockets it makes, so that they are closed by the fixture and never collected."""

    made: list[Socket]

    def socket(self, socket_type: int, *args: Any, **kwargs: Any) -> Socket:
        """As the base's."""
        socket = super().socket(socket_type, *args, **kwargs)
        self.made.append(socket)
        return socket


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    context = KeepingContext()
    context.made = []
    yield context
    context.destroy(linger=0)


@pytest.fixture
def endpoint() -> str:
    return abstract_endpoint(secrets.token_hex(8), "frontend", 0, 1, socket="test")


def test_options(context: zmq.Context[Socket], endpoint: str) -> None:
    router, bound = bind_socket(context, zmq.ROUTER, BoundEnd(endpoint), SETTINGS)
    assert bound == endpoint
    dealer = connect_socket(context, zmq.DEALER, Target(endpoint, b"E-identity"), SETTINGS)
    push = connect_socket(context, zmq.PUSH, Target(endpoint, b"E-identity"), SETTINGS)
    for socket in (router, dealer, push):
        assert socket.getsockopt(zmq.LINGER) == 0
        assert socket.get(zmq.MAXMSGSIZE) != -1
        assert socket.getsockopt(zmq.HEARTBEAT_IVL) == 0, "local sockets idle for free"
    assert router.getsockopt(zmq.SNDHWM) == 10
    assert dealer.getsockopt(zmq.RCVHWM) == 10
    assert dealer.getsockopt(zmq.SNDHWM) == 8
    assert dealer.getsockopt(zmq.ROUTING_ID) == b"E-identity"


def test_tcp_has_heartbeats_and_a_port_of_the_kernels_choice(
    context: zmq.Context[Socket],
) -> None:
    pull, bound = bind_socket(context, zmq.PULL, BoundEnd("tcp://127.0.0.1:0"), SETTINGS)
    assert pull.getsockopt(zmq.HEARTBEAT_IVL) == 250
    assert bound.startswith("tcp://127.0.0.1:")
    assert not bound.endswith(":0")


def test_a_second_binder_is_refused(context: zmq.Context[Socket], endpoint: str) -> None:
    bind_socket(context, zmq.PULL, BoundEnd(endpoint), SETTINGS)
    with pytest.raises(EndpointInUse, match="in use"):
        bind_socket(context, zmq.PULL, BoundEnd(endpoint), SETTINGS)


def test_a_path_on_disk_is_refused(context: zmq.Context[Socket]) -> None:
    with pytest.raises(BadEndpoint):
        bind_socket(context, zmq.ROUTER, BoundEnd("ipc:///tmp/a-file"), SETTINGS)


def test_an_address_that_is_not_ours_is_an_os_error(context: zmq.Context[Socket]) -> None:
    with pytest.raises(OSError, match="tcp://192"):
        bind_socket(context, zmq.PULL, BoundEnd("tcp://192.0.2.1:0"), SETTINGS)


def test_a_foreign_user_is_refused(context: zmq.Context[Socket], endpoint: str) -> None:
    foreign = SocketSettings(linger_ms=0, allowed_uid=os.getuid() + 1)
    pull, _ = bind_socket(context, zmq.PULL, BoundEnd(endpoint), foreign)
    monitor = pull.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_ACCEPT_FAILED)
    connect_socket(context, zmq.PUSH, Target(endpoint, b"E-foreign"), SETTINGS)
    assert monitor.poll(PATIENCE_MS), "the connection arrives"
    assert recv_monitor_message(monitor)["event"] == zmq.EVENT_ACCEPT_FAILED
    pull.disable_monitor()


def test_a_router_reports_a_peer_that_is_not_there(
    context: zmq.Context[Socket], endpoint: str
) -> None:
    held = HeldSockets(context, zmq.ROUTER, SETTINGS, {0: BoundEnd(endpoint)})
    assert held.open() == {0: endpoint}
    assert held.send(Addressee(0, b"E-absent"), (b"frame",)) == "it is not connected"
    dealer = connect_socket(context, zmq.DEALER, Target(endpoint, b"E-present"), SETTINGS)
    dealer.send(b"hello")
    (router,) = held.sockets().values()
    assert router.poll(PATIENCE_MS)
    assert held.send(Addressee(0, b"E-present"), (b"frame",)) == ""
    assert dealer.poll(PATIENCE_MS)
    assert dealer.recv_multipart() == [b"frame"]
    held.close()
    assert router.closed


def test_a_full_pipe_is_reported_and_not_waited_for(
    context: zmq.Context[Socket], endpoint: str
) -> None:
    held = HeldSockets(context, zmq.PUSH, SETTINGS)
    assert held.open() == {}
    assert held.send("hub", (b"frame",)) == "it is not connected"
    held.connect("hub", Target(endpoint, b"E-identity"))
    # No hub is bound there: the pipe takes what its high-water mark allows.
    reasons = [held.send("hub", (b"frame",)) for _ in range(11)]
    assert reasons == [*[""] * 10, "its pipe is full"]
    gone = held.disconnect("hub")
    assert gone is not None
    gone.close(linger=0)
    assert held.disconnect("hub") is None
    held.close()


@pytest.mark.parametrize(
    "frames",
    [
        (b"alone",),
        (b"",),
        (bytearray(b"first"), b"second"),
        (b"\x7f", b"", memoryview(bytes(range(256)) * 1024), b"last"),
        (bytes(2**20),),
    ],
    ids=["alone", "empty", "two", "array", "large"],
)
def test_messages_arrive_frame_by_frame_and_none_runs_into_the_next(
    context: zmq.Context[Socket], endpoint: str, frames: tuple[Frame, ...]
) -> None:
    pull = HeldSockets(context, zmq.PULL, SETTINGS, {0: BoundEnd(endpoint)})
    pull.open()
    push = HeldSockets(context, zmq.PUSH, SETTINGS)
    push.connect("hub", Target(endpoint, b"E-identity"))
    messages = [frames, (b"between",), frames]
    for message in messages:
        assert push.send("hub", message) == ""
    assert receive(pull, 3) == [[bytes(frame) for frame in message] for message in messages]
    assert bytes(frames[0])[:1] < b"\x80", "what is sent is not written to"


def test_a_lie_about_further_frames_spoils_only_what_the_liar_sends(
    context: zmq.Context[Socket], endpoint: str
) -> None:
    pull = HeldSockets(context, zmq.PULL, SETTINGS, {0: BoundEnd(endpoint)})
    pull.open()
    liar = connect_socket(context, zmq.PUSH, Target(endpoint, b"E-liar"), SETTINGS)
    liar.send(b"\xffannounced")
    liar.send_multipart([b"not", b"announced"])
    liar.send(b"after")
    assert receive(pull, 4) == [[b"\x7fannounced"], [b"not"], [b"announced"], [b"after"]]


def test_a_routers_messages_begin_with_who_sent_them(
    context: zmq.Context[Socket], endpoint: str
) -> None:
    router = HeldSockets(context, zmq.ROUTER, SETTINGS, {0: BoundEnd(endpoint)})
    router.open()
    dealer = connect_socket(context, zmq.DEALER, Target(endpoint, b"E-present"), SETTINGS)
    dealer.send(b"hello")
    dealer.send_multipart([b"one", b"two"])
    assert receive(router, 2) == [[b"E-present", b"hello"], [b"E-present", b"one", b"two"]]


def test_no_more_is_received_than_wanted(context: zmq.Context[Socket], endpoint: str) -> None:
    pull = HeldSockets(context, zmq.PULL, SETTINGS, {0: BoundEnd(endpoint)})
    pull.open()
    push = connect_socket(context, zmq.PUSH, Target(endpoint, b"E-identity"), SETTINGS)
    for number in range(5):
        push.send(b"%d" % number)
    (socket,) = pull.sockets().values()
    found: list[Received] = []
    while len(found) < 5:
        assert socket.poll(PATIENCE_MS)
        burst = pull.receive(socket, 2)
        assert 1 <= len(burst) <= 2
        found += burst
    assert found == [b"%d" % number for number in range(5)]
    assert pull.receive(socket, 2) == []


def receive(held: HeldSockets, count: int) -> list[list[bytes]]:
    (socket,) = held.sockets().values()
    found: list[list[bytes]] = []
    while len(found) < count:
        assert socket.poll(PATIENCE_MS)
        burst = held.receive(socket, 10)
        found += [
            [message] if isinstance(message, bytes) else [bytes(frame) for frame in parts(message)]
            for message in burst
        ]
    return found


def parts(message: list[Frame] | Enveloped) -> list[Frame]:
    return [message.identity, *message.frames] if isinstance(message, Enveloped) else message
