"""The lanes client against scripted bytes; the real server is met in `test_runner`."""

import json
from typing import Any

import pytest
import wsproto.frame_protocol as rfc

from triolet.bench.load.client import ClientFault, Target
from triolet.bench.load.history import Outcome
from triolet.bench.load.lanes import LanesClient
from triolet.bench.load.schedule import Ask
from triolet.fuzz.doubles.client_frames import CLOSE, PONG, encode_frame

ACCEPTED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"


class ActingServer:
    """The server's end of a client's frames."""

    def __init__(self) -> None:
        self.protocol = rfc.FrameProtocol(client=False, extensions=[])

    def read(self, data: bytes) -> dict[str, Any]:
        self.protocol.receive_bytes(data)
        (frame,) = self.protocol.received_frames()
        value = json.loads(str(frame.payload))
        assert isinstance(value, dict)
        return value

    def say(self, **event: Any) -> bytes:
        return bytes(self.protocol.send_data(json.dumps(event), True))


def opened(lanes: int = 2) -> LanesClient:
    client = LanesClient(Target(host="h", port=1), lanes, with_token_ids=True)
    assert b"Upgrade: websocket" in client.open()
    assert client.free == 0
    assert client.receive(ACCEPTED, 0.0) == b""
    return client


def test_a_lane_runs_one_request_and_is_free_again() -> None:
    client, server = opened(), ActingServer()
    assert client.free == 2
    history, data = client.start(Ask(0, 0.0, "hi", 3, 1), 1.0)
    asked = server.read(data)
    assert (asked["type"], asked["input"]) == ("response.create", "hi")
    assert asked["runtime"]["token_ids"]
    assert client.free == 1
    lane = asked["stream_id"]
    created = server.say(
        type="response.created", sequence_number=0, stream_id=lane, response={"id": "r"}
    )
    end = server.say(
        type="response.completed", sequence_number=7, stream_id=lane, response={"id": "r"}
    )
    client.receive(created + end[:5], 2.0)
    assert client.take_ended() == []
    client.receive(end[5:], 3.0)
    assert client.take_ended() == [history]
    assert (client.free, history.outcome, history.ended_s) == (2, Outcome.COMPLETED, 3.0)
    assert client.take_ended() == []


def test_pings_and_closes_are_answered_and_what_runs_is_broken() -> None:
    client, server = opened(), ActingServer()
    assert client.receive(bytes(server.protocol.ping(b"p")), 1.0) == encode_frame(PONG, b"p")
    history, _ = client.start(Ask(0, 0.0, "hi", 3, 1), 1.0)
    reply = client.receive(bytes(server.protocol.close(1012, "restart")), 2.0)
    assert reply == encode_frame(CLOSE, (1012).to_bytes(2, "big"))
    assert (client.has_ended, client.free) == (True, 0)
    client.handle_closed("end of stream", 3.0)
    assert client.take_ended() == [history]
    assert (history.outcome, history.error) == (Outcome.BROKEN, "closed 1012")


def test_what_comes_with_the_handshake_is_read() -> None:
    client = LanesClient(Target(host="h", port=1))
    assert client.receive(ACCEPTED[:20], 0.0) == b""
    ping = rfc.FrameProtocol(client=False, extensions=[]).ping(b"q")
    assert client.receive(ACCEPTED[20:] + ping, 0.0) == encode_frame(PONG, b"q")


def test_a_refused_handshake_is_a_fault() -> None:
    client = LanesClient(Target(host="h", port=1))
    with pytest.raises(ClientFault, match="401"):
        client.receive(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n", 0.0)


def test_nonsense_is_a_fault() -> None:
    with pytest.raises(ClientFault):
        opened().receive(b"\x81\x02{]", 0.0)
