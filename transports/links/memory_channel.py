"""Channels inside one process, for engines in the process of their frontend, and for tests.

The same links, events and deadlines as over ZeroMQ (`linked_channel`), the same header and codec
bytes; only the sockets are missing. A `MemoryMesh` joins hubs and spokes. A message that arrives is
handled by the receiver's task, never inside the sender's `send`.
"""

from collections import deque
from collections.abc import Sequence
from typing import NoReturn, Protocol, TypeVar

import attrs
import trio

from ..array import Frame
from ..codec import Codec
from .channel import Peer
from .link import Side
from .link_header import FrameKind, Header, LinkSettings, decode_header
from .link_keys import AllowedKeys
from .linked_channel import CarriedChannel, LinkedChannel

T = TypeVar("T")


class FrameFault(Protocol):
    """Fault that a test puts in the way of messages; see `fuzz.doubles.link_faults`."""

    def pass_on(self, receiver: Side, frame: T) -> list[T]:
        """Frames to deliver to this side in place of `frame`: mostly itself."""


@attrs.define(eq=False)
class MemoryMesh:
    """Channels that can reach each other. `hub_to_spoke` codes the messages of hubs."""

    hub_to_spoke: Codec
    spoke_to_hub: Codec
    settings: LinkSettings = attrs.field(factory=LinkSettings)
    faults: Sequence[FrameFault] = ()
    _hubs: dict[str, "MemoryHub"] = attrs.field(factory=dict, init=False)  # by input endpoint
    _spokes: dict[Peer, "MemorySpoke"] = attrs.field(factory=dict, init=False)

    def open_hub(self, peer_self: Peer) -> "MemoryHub":
        """A hub that spokes of this mesh reach by its endpoints."""
        hub = MemoryHub(peer_self, self)
        self._hubs[hub.endpoints[0]] = hub
        return hub

    def open_spoke(self, peer_self: Peer) -> "MemorySpoke":
        """A spoke; the hubs see it as `peer_self`."""
        spoke = self._spokes[peer_self] = MemorySpoke(peer_self, self)
        return spoke

    def find_hub(self, endpoint: str) -> "MemoryHub | None":
        """The hub bound there, if any."""
        return self._hubs.get(endpoint)

    def find_spoke(self, peer: Peer) -> "MemorySpoke | None":
        """The spoke of that name, if any."""
        return self._spokes.get(peer)

    def carry(
        self, side: Side, receiver: "MemoryHub | MemorySpoke", frames: "MemoryFrames"
    ) -> None:
        """Bring one message to its receiver, which is on this side, past all faults."""
        arriving = [frames]
        for fault in self.faults:
            arriving = [out for item in arriving for out in fault.pass_on(side, item)]
        for each in arriving:
            receiver.mailbox.put(each)


@attrs.define(eq=False)
class MemoryFrames:
    """A message on its way."""

    sender: Peer
    header: bytes
    payload: list[bytes]


@attrs.define(eq=False)
class _Broken:
    peer: Peer
    generation: int


@attrs.define(eq=False)
class _Mailbox:
    """Mailbox of one channel. Bounded by the links' unacknowledged messages."""

    links: LinkedChannel
    # Bounded as the class says.
    _arrived: deque[MemoryFrames | _Broken] = attrs.field(factory=deque, init=False)
    _reader: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def put(self, item: MemoryFrames | _Broken) -> None:
        self._arrived.append(item)
        self._reader.unpark_all()

    async def run(self) -> NoReturn:
        while True:
            while not self._arrived:
                await self._reader.park()
            item = self._arrived.popleft()
            match item:
                case _Broken(peer=peer, generation=generation):
                    reason = f"{peer}: it is not connected"
                    self.links.handle_broken(peer, generation, reason)
                case MemoryFrames():
                    header = decode_header(item.header)
                    self.links.handle_frames(item.sender, header, item.payload)
            if self._arrived:
                await trio.lowlevel.checkpoint()


def _copy(sender: Peer, header: Header, frames: Sequence[Frame]) -> MemoryFrames:
    return MemoryFrames(sender, header.encode(), [bytes(frame) for frame in frames])


@attrs.define(eq=False)
class _MemoryChannel(CarriedChannel):
    """Common part of both ends; a subclass is their carrier."""

    peer_self: Peer
    mesh: MemoryMesh
    room: int = attrs.field(default=0, init=False)  # headers travel beside
    mailbox: _Mailbox = attrs.field(init=False)

    async def run_input(self, *, task_status: trio.TaskStatus[str]) -> NoReturn:
        """Hand over everything that arrives."""
        task_status.started("")
        await self.mailbox.run()

    async def run_output(self, *, task_status: trio.TaskStatus[str]) -> NoReturn:
        """Do nothing: output needs no task here."""
        task_status.started("")
        await trio.sleep_forever()


@attrs.define(eq=False)
class MemoryHub(_MemoryChannel):
    """`channel.HubEnd` in memory."""

    # {spoke: generation that is open}
    _generations: dict[Peer, int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        mesh = self.mesh
        codecs = (mesh.spoke_to_hub, mesh.hub_to_spoke)
        self.links = LinkedChannel(Side.HUB, self, *codecs, mesh.settings)
        self.mailbox = _Mailbox(self.links)

    def allow(self, keys: AllowedKeys) -> None:
        """See `channel.HubEnd`: in memory there is no network."""

    @property
    def endpoints(self) -> tuple[str, str]:
        """Names within the mesh."""
        name = f"memory://{self.peer_self.role}-{self.peer_self.rank}-{self.peer_self.epoch}"
        return f"{name}-input", f"{name}-output"

    def open_generation(self, peer: Peer, generation: int) -> None:
        self._generations[peer] = generation

    def close(self, peer: Peer) -> None:
        self._generations.pop(peer, None)

    def transmit(self, peer: Peer, header: Header, frames: Sequence[Frame]) -> bool:
        """Know whether the spoke is there, as a ROUTER does."""
        spoke = self.mesh.find_spoke(peer)
        if spoke is None or spoke.generation_to(self.peer_self) != header.generation:
            if header.kind is not FrameKind.LINK_RESET:
                self.mailbox.put(_Broken(peer, header.generation))
            return True
        self.mesh.carry(Side.SPOKE, spoke, _copy(self.peer_self, header, frames))
        return True


@attrs.define(eq=False)
class MemorySpoke(_MemoryChannel):
    """`channel.SpokeEnd` in memory."""

    # {hub: its input endpoint}, and {hub: generation that is open}
    _endpoints: dict[Peer, str] = attrs.field(factory=dict, init=False)
    _generations: dict[Peer, int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        mesh = self.mesh
        codecs = (mesh.hub_to_spoke, mesh.spoke_to_hub)
        self.links = LinkedChannel(Side.SPOKE, self, *codecs, mesh.settings)
        self.mailbox = _Mailbox(self.links)

    def connect(
        self, peer: Peer, input_endpoint: str, output_endpoint: str, server_key: bytes = b""
    ) -> bool:
        if not self.links.may_connect(peer):
            return False
        self._endpoints[peer] = input_endpoint
        return self.links.connect(peer)

    def generation_to(self, hub: Peer) -> int | None:
        """The generation in which this spoke can be reached by the hub, as its DEALER could."""
        return self._generations.get(hub)

    def open_generation(self, peer: Peer, generation: int) -> None:
        self._generations[peer] = generation

    def close(self, peer: Peer) -> None:
        self._generations.pop(peer, None)
        del self._endpoints[peer]

    def transmit(self, peer: Peer, header: Header, frames: Sequence[Frame]) -> bool:
        """Not know whether the hub is there, as a PUSH."""
        hub = self.mesh.find_hub(self._endpoints[peer])
        if hub is not None:
            self.mesh.carry(Side.HUB, hub, _copy(self.peer_self, header, frames))
        return True
