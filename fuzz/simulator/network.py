"""Simulated network: the memory mesh with time between a frame's sending and its arrival.

Frames from one process to another arrive in their order, late, or not at all while the way between
the two is cut. Frames of an earlier link generation may arrive after those of a later one, as those
of two sockets may. What a dead process had sent may still arrive, or be lost with it.
"""

import heapq
import itertools
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import attrs
import trio

from ...engine.messages import (
    ENGINE_TO_FRONTEND,
    FRONTEND_TO_ENGINE,
    Resync,
    StatisticsReport,
    StepOutputs,
)
from ...transports.codec import Codec
from ...transports.links.channel import Peer
from ...transports.links.link import Side
from ...transports.links.link_header import LinkSettings
from ...transports.links.memory_channel import MemoryFrames, MemoryHub, MemoryMesh, MemorySpoke

# Made once: a codec takes milliseconds to make, and keeps nothing of what it codes.
CODECS = Codec(*FRONTEND_TO_ENGINE), Codec(*ENGINE_TO_FRONTEND)
# Of most frames, then of those that are slow. A loop takes a frame in at once.
DELAYS_S = (0.0, 0.0, 0.0, 0.0, 0.0005, 0.003)
SLOW_S = (0.02, 0.1, 0.3)
# Between machines.
SILENCE_PROBE_S = 0.25
# What one channel may have waiting; credits and windows keep it far below.
WAITING_MAX = 5000
# No oracle wants this one.
WRONG_TOKEN = 3


@attrs.define(eq=False)
class SimNetwork(MemoryMesh):
    """All channels of one simulation."""

    chance: Random = attrs.field(kw_only=True)
    note: Callable[[str], None] = attrs.field(kw_only=True)
    # {(frontend rank, engine rank): since when nothing passes between them}
    cuts: dict[tuple[int, int], float] = attrs.field(factory=dict, init=False)
    # The same, of ways that are slow.
    slow: set[tuple[int, int]] = attrs.field(factory=set, init=False)
    # {way: how many frames are still to be dropped, or to be doubled}
    drops: Counter[tuple[int, int]] = attrs.field(factory=Counter, init=False)
    doubles: Counter[tuple[int, int]] = attrs.field(factory=Counter, init=False)
    # Whether the receiver knows that this life of the sender is over.
    is_over: Callable[[Peer, Peer], bool] = attrs.field(default=lambda *_: False, init=False)
    # Hears each message of a frontend, if it wants to.
    on_asked: Callable[[object], None] | None = attrs.field(default=None, init=False)
    frames: int = attrs.field(default=0, init=False)
    most_waiting: int = attrs.field(default=0, init=False)
    _under_way: list[tuple[float, int, MemoryHub | MemorySpoke, MemoryFrames]] = attrs.field(
        factory=list, init=False
    )
    # When the last frame arrives that was sent from one process to another in one generation.
    _last: dict[tuple[Peer, Peer, int], float] = attrs.field(factory=dict, init=False)
    # Whose processes are dead, and their tasks perhaps not yet over.
    dead: set[Peer] = attrs.field(factory=set, init=False)
    _numbers: Iterator[int] = attrs.field(factory=itertools.count, init=False)
    # Ends when the first of them arrives.
    _next: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def carry(self, side: Side, receiver: MemoryHub | MemorySpoke, frames: MemoryFrames) -> None:
        """See `MemoryMesh`."""
        if frames.sender in self.dead:
            return
        self.frames += 1
        here, there = receiver.peer_self, frames.sender
        way = (here.rank, there.rank) if side is Side.HUB else (there.rank, here.rank)
        summary = zlib.crc32(b"".join(frames.payload))
        if self.on_asked is not None and side is Side.SPOKE and frames.payload:
            self.on_asked(self.hub_to_spoke.decode(frames.payload, 0))
        self.note(f"frame {there} {here} {frames.header.hex()} {summary}")
        if way in self.cuts:
            return
        if self.drops[way]:
            self.drops[way] -= 1
            self.note(f"drop {way}")
            return
        copies = 1
        if self.doubles[way]:
            self.doubles[way] -= 1
            self.note(f"double {way}")
            copies = 2
        delay_s = self.chance.choice(SLOW_S if way in self.slow else DELAYS_S)
        now = trio.current_time()
        generation = int.from_bytes(frames.header[1:5], "big")
        key = (there, here, generation)
        arrives = max(now + delay_s, self._last.get(key, 0.0))
        for _ in range(copies):
            if arrives <= now:
                self._arrive(receiver, frames)
                continue
            self._last[key] = arrives
            heapq.heappush(self._under_way, (arrives, next(self._numbers), receiver, frames))
            self._next.deadline = self._under_way[0][0]

    def _arrive(self, receiver: MemoryHub | MemorySpoke, frames: MemoryFrames) -> None:
        if frames.payload and self.is_over(receiver.peer_self, frames.sender):
            frames = self._poisoned(frames)
        receiver.mailbox.put(frames)
        waiting = len(receiver.mailbox._arrived)
        self.most_waiting = max(self.most_waiting, waiting)
        assert waiting <= WAITING_MAX, f"{receiver.peer_self} has {waiting} frames waiting"

    def _poisoned(self, frames: MemoryFrames) -> MemoryFrames:
        """I11: what the dead say must not count, so it is made wrong.

        Of a frontend it is that nothing of all that it had is wanted.
        """
        if frames.sender.role == "frontend":
            payload = [bytes(frame) for frame in self.hub_to_spoke.encode(Resync([]))]
            return MemoryFrames(frames.sender, frames.header, payload)
        message = self.spoke_to_hub.decode(frames.payload, 0)
        if isinstance(message, StepOutputs):
            outputs = [
                attrs.evolve(each, token_ids=[WRONG_TOKEN] * len(each.token_ids))
                for each in message.outputs
            ]
            message = attrs.evolve(
                message, outputs=outputs, token_ids=[WRONG_TOKEN] * len(message.token_ids)
            )
        elif isinstance(message, StatisticsReport):
            counts = attrs.evolve(message.statistics, running=10**6)
            message = attrs.evolve(message, statistics=counts)
        payload = [bytes(frame) for frame in self.spoke_to_hub.encode(message)]
        return MemoryFrames(frames.sender, frames.header, payload)

    async def run(self) -> None:
        """Background task: brings what is late."""
        while True:
            while self._under_way and self._under_way[0][0] <= trio.current_time():
                _, _, receiver, frames = heapq.heappop(self._under_way)
                self._arrive(receiver, frames)
            deadline = self._under_way[0][0] if self._under_way else float("inf")
            with trio.CancelScope(deadline=deadline) as self._next:
                await trio.sleep_forever()

    def cut(self, way: tuple[int, int]) -> None:
        """Lose all that is under way between the two, and what follows."""
        self.cuts[way] = trio.current_time()
        self._lose(lambda peers: {("frontend", way[0]), ("engine", way[1])} == peers)

    def remove(self, peer: Peer, endpoint: str = "") -> None:
        """Its process is dead; with it goes, or not, what it had sent."""
        self.dead.add(peer)
        self._spokes.pop(peer, None)
        self._hubs.pop(endpoint, None)
        if self.chance.random() < 0.5:
            self._under_way = [item for item in self._under_way if item[3].sender != peer]
            heapq.heapify(self._under_way)

    def _lose(self, is_lost: Callable[[set[tuple[str, int]]], bool]) -> None:
        def pair(receiver: MemoryHub | MemorySpoke, sender: Peer) -> set[tuple[str, int]]:
            here = receiver.peer_self
            return {(here.role, here.rank), (sender.role, sender.rank)}

        self._under_way = [
            item for item in self._under_way if not is_lost(pair(item[2], item[3].sender))
        ]
        heapq.heapify(self._under_way)


def make_network(
    chance: Random, note: Callable[[str], None], *, is_apart: bool = False
) -> SimNetwork:
    """A network with the codecs of frontends and engines; `is_apart`: of several machines."""
    link = LinkSettings(silence_probe_s=SILENCE_PROBE_S if is_apart else math.inf)
    return SimNetwork(*CODECS, link, chance=chance, note=note)
