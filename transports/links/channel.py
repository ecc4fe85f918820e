"""Interface of channels: peers, events, and what a channel promises to those who send and receive.

A *channel* joins this process to many *peers* at once (a frontend to all engines, an engine to all
frontends). It numbers messages, notices gaps, starts a new *generation* of the link when one is
found, and says so with `PeerUp`: the two sides then say again what they need (RESYNC).

`zmq_channel` joins processes, `memory_channel` tasks of one process. Both pass
`tests/contracts/channel.py`.
"""

from collections import Counter
from typing import NoReturn, Protocol

import attrs
import trio

from ..array import Frame
from ..codec import MalformedMessage
from .link_header import Mishap
from .link_keys import AllowedKeys


@attrs.frozen(order=True, cache_hash=True)
class Peer:
    """Incarnation of a process: a successor of the same rank is another peer.

    A rank's lives may be numbered by something else than epochs: to engines it is the term under
    which a frontend owns its home. The hash is kept, as links and requests are looked up by peer
    for every message.
    """

    role: str
    rank: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.role} {self.rank} (epoch {self.epoch})"


@attrs.frozen
class PeerUp:
    """A link generation began: nothing sent before it will arrive any more, in either direction."""

    peer: Peer
    generation: int


@attrs.frozen
class PeerDown:
    """The link is broken or the peer was forgotten; `reason` is a sentence for the log."""

    peer: Peer
    reason: str


@attrs.frozen
class PeerSilent:
    """The peer answers nothing, whether or not its link is up; no proof of a death."""

    peer: Peer
    silent_s: float


@attrs.frozen
class PeerHeard:
    """The peer that was silent speaks again."""

    peer: Peer


@attrs.define
class Received:
    """A received message: in order, once, within the current generation.

    A value, never changed; not frozen because one is made per message.
    """

    peer: Peer
    message: object
    # The first frame as it came, of which so many bytes are the carrier's. Never written to.
    _carried: Frame = attrs.field(default=b"", eq=False, repr=False)
    _room: int = attrs.field(default=0, eq=False, repr=False)

    @property
    def frame(self) -> memoryview:
        """The message as the sender's codec encoded it, without arrays that have their own frames.

        A view, made on demand (0.2 µs): most readers never ask.
        """
        return memoryview(self._carried)[self._room :]


@attrs.frozen
class Misread:
    """A message in the place of which only `error.known` could be read: its sender may wait."""

    peer: Peer
    error: MalformedMessage


ChannelEvent = PeerUp | PeerDown | PeerSilent | PeerHeard | Received | Misread


@attrs.frozen
class PeerNotConnected(Exception):
    """No link generation with this peer is up; the caller waits for its `PeerUp`."""

    peer: Peer

    def __str__(self) -> str:
        return f"{self.peer} is not connected"


class Channel(Protocol):
    """Calls that both ends of a mesh have."""

    def send(self, peer: Peer, message: object) -> None:
        """Queue one message; never waits, any task of the loop may call it.

        Raises `PeerNotConnected` until `receive` has returned the `PeerUp` of the generation that
        is up, and from the moment at which it ended, whether or not its `PeerDown` was taken: so
        the first message of a generation is the one that is sent on its `PeerUp`, and none goes out
        by one that its reader does not know. What was queued when one ends is lost, by contract.
        """

    async def receive(self) -> list[ChannelEvent]:
        """Wait for events and take those that are there, oldest first. One task at a time.

        A `PeerUp` is preceded by nothing but others: when it is taken, all that came before it has
        been handled. Cancellation loses nothing.
        """

    def break_link(self, peer: Peer, reason: str) -> None:
        """End the generation whose `PeerUp` was taken; another one begins by itself.

        For a reader that misses something. No effect if it has ended already.
        """

    def forget(self, peer: Peer) -> None:
        """Drop the link and everything queued for it; a later event of this peer is ignored."""


class RunnableChannel(Channel, Protocol):
    """A channel with its three background tasks, which the house starts under its own names.

    All must run while the channel is used. `started` of those that own sockets gives the endpoint
    that was bound, or "".
    Cancelling one ends and joins what it owns before it returns; no one returns by itself.
    """

    async def run_deadlines(self, *, task_status: trio.TaskStatus[None]) -> NoReturn:
        """Gives all links their timeouts; owns nothing."""

    async def run_input(self, *, task_status: trio.TaskStatus[str]) -> NoReturn:
        """Owns the sockets by which messages come to the spokes."""

    async def run_output(self, *, task_status: trio.TaskStatus[str]) -> NoReturn:
        """Owns the sockets by which messages come to the hubs."""


class HubEnd(RunnableChannel, Protocol):
    """The end that binds and is connected to: a frontend's."""

    @property
    def mishaps(self) -> Counter[Mishap]:
        """Mishaps on all links so far, counted."""

    @property
    def endpoints(self) -> tuple[str, str]:
        """(input, output), what a spoke connects to; advertise them once both tasks started."""

    def allow(self, keys: AllowedKeys) -> None:
        """Let spokes come over a network by these keys, and no others, from now on."""


class SpokeEnd(RunnableChannel, Protocol):
    """The end that connects: an engine's."""

    def connect(
        self, peer: Peer, input_endpoint: str, output_endpoint: str, server_key: bytes = b""
    ) -> bool:
        """Open a link to a hub and keep opening generations of it until it is forgotten.

        False, and nothing happens, if the peer is connected or was forgotten. Never waits.
        """
