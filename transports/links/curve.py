"""CURVE of ZeroMQ: encrypted sockets, and the answer to who may connect (ZAP, RFC 27).

libzmq asks one socket of its context, at an endpoint of a fixed name, about every key that is shown
to a bound socket with a *domain*. The owner thread of a hub's input answers, for the output's
sockets as well: only one socket can have the name, and a context of its own for each thread would
cost another I/O thread. A socket whose domain nobody answers for lets nobody in (`ENFORCE_DOMAIN`;
without it libzmq would let in everybody).

A refusal is said with ZAP's 300, a temporary one: at a final one (400) the other side's socket
would never try again, also if its key came before the news that it is allowed. After a 300 it
waits for the end of its handshake, and comes again.

A question names no identity of the client; so the key travels on with each message (User-Id), and
what it may speak for is looked at where the identity is read.
"""

from collections.abc import Callable

import zmq
from zmq.utils import z85

from .link_keys import LinkKeys

_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_DOMAIN = b"triolet"
_USER_ID = "User-Id"
# version, request id, domain, address, identity, mechanism, key.
_QUESTION_FRAMES = 7

_Socket = zmq.Socket[bytes]


def make_link_keys() -> LinkKeys:
    """A new pair."""
    public, secret = zmq.curve_keypair()
    return LinkKeys(z85.decode(public), z85.decode(secret))


def guard_bound(socket: _Socket, keys: LinkKeys) -> None:
    """Let in only clients that know `keys.public`, and whose key is answered for; before `bind`."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
    socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def show_keys(socket: _Socket, keys: LinkKeys, server_key: bytes) -> None:
    """Come as `keys.public`, and only to who has `server_key`; before `connect`."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, server_key)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)


def bind_door(context: zmq.Context[_Socket]) -> _Socket:
    """The socket at which libzmq asks; one a context."""
    socket = context.socket(zmq.REP)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(_ZAP_ENDPOINT)
    return socket


def answer_door(socket: _Socket, let_in: Callable[[bytes], bool]) -> None:
    """Answer every question that is there."""
    while True:
        try:
            question = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        version, request_id, _, _, _, mechanism, key = question[:_QUESTION_FRAMES]
        if mechanism == b"CURVE" and let_in(key):
            answer = [b"200", b"", key.hex().encode(), b""]
        else:
            answer = [b"300", b"", b"", b""]
        socket.send_multipart([version, request_id, *answer])


def shown_key(frame: zmq.Frame) -> bytes:
    """The public key by which the sender of this frame came; b"" if it came without."""
    try:
        return bytes.fromhex(str(frame.get(_USER_ID)))
    except zmq.ZMQError:
        return b""
