"""Every refusal is a sentence that names who, and the messages travel through the codec."""

import pytest

from triolet.transports.codec import Codec
from triolet.transports.control import handshake_messages as messages


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (messages.WrongVersion("worker 1", 2, 1), "speaks wire version 2, this process 1"),
        (messages.WrongKey("worker 1"), "has not the key"),
        (messages.StrayPeer("worker 1", "process 7"), "found process 7"),
        (messages.StaleMessage("worker 1", "Ready", 3, 4), "Ready of epoch 3, expected 4"),
        (messages.DuplicateMessage("worker 1", "Hello"), "Hello twice"),
        (messages.OutOfOrder("worker 1", "Init", "booting"), "Init in the phase: booting"),
        (messages.TooLate("worker 1", "Progress"), "after its handshake was over"),
        (
            messages.HandshakeTimeout("worker 1", "booting", 60.0, ("a", "b")),
            "no progress for 60 s in the phase: booting; a; b",
        ),
        (messages.PeerLeft("worker 1", "booting"), "left in the phase: booting"),
    ],
)
def test_errors_read_well(error: messages.HandshakeError, text: str) -> None:
    assert "worker 1" in str(error)
    assert text in str(error)


@pytest.mark.parametrize(
    "message",
    [
        messages.Hello(wire_version=1, role="worker", pid=7, key=b"k", capabilities=("a",)),
        messages.Init(epoch=3, payload=b"settings"),
        messages.Progress(epoch=3, number=1, phase="loading", fraction=0.5),
        messages.Ready(epoch=3, payload=b"limits"),
    ],
)
def test_messages_survive_the_codec(message: messages.HandshakeMessage) -> None:
    codec = Codec(*messages.HANDSHAKE_MESSAGES)
    assert codec.decode(codec.encode(message)) == message
