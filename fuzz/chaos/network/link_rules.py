"""Rules of the links between hosts: which Ethernet frame passes, and when.

Sans-IO: frames and the time in, frames out. `switch` reads and writes the devices.

A *way* is one direction between two hosts: a cable that is cut halfway is cut one way. Frames of a
way stay in order, whatever their jitter, as on a cable; loss is drawn for each alone. What is on
its way when a way is cut is lost. What waits for its time is bounded for each way, and a frame that
finds no room is dropped, as in a switch whose port is full.
"""

import heapq
import math
import random
from collections.abc import Iterable
from typing import Any

import attrs

# From a host to another, by their numbers.
Way = tuple[int, int]

# Bytes that a way may hold: some hundreds of KiB, as a port of a small switch does.
WAITING_BYTES_MAX = 512 * 1024
# The last byte of an address is its host's number; an odd first byte is that of a group.
ADDRESS_BYTES, GROUP_BIT = 6, 1


@attrs.frozen(kw_only=True)
class LinkRule:
    """State of one way. `loss` is the share of frames that are lost."""

    is_cut: bool = False
    delay_s: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))
    # Added to the delay: up to so much.
    jitter_s: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))
    loss: float = attrs.field(
        default=0.0, validator=[attrs.validators.ge(0), attrs.validators.le(1)]
    )
    bytes_per_s: float = attrs.field(default=math.inf, validator=attrs.validators.gt(0))


@attrs.define
class WayCounts:
    """Frames of one way so far."""

    passed: int = 0
    dropped: int = 0


@attrs.define(eq=False)
class _WayState:
    rule: LinkRule = attrs.field(factory=LinkRule)
    counts: WayCounts = attrs.field(factory=WayCounts)
    # When its last frame has been sent, at its rate; and when it arrives.
    sent_s: float = -math.inf
    arrives_s: float = -math.inf
    waiting_bytes: int = 0


@attrs.define(eq=False)
class LinkRules:
    """All ways between hosts, and the frames on them."""

    hosts: Iterable[int]
    chance: random.Random
    _ways: dict[Way, _WayState] = attrs.field(init=False)
    # Heap of (due time, number, way, frame); bounded by `WAITING_BYTES_MAX` for each way.
    _waiting: list[tuple[float, int, Way, bytes]] = attrs.field(factory=list, init=False)
    _number: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.hosts = tuple(self.hosts)
        self._ways = {
            (source, target): _WayState()
            for source in self.hosts
            for target in self.hosts
            if source != target
        }

    def change(self, way: Way, **changes: Any) -> None:
        """Change some of a way's rule. Raises `ValueError` or `TypeError` for what is none."""
        state = self._ways[way]
        state.rule = attrs.evolve(state.rule, **changes)

    def counts(self) -> dict[Way, WayCounts]:
        """{way: its counters now}."""
        return {way: attrs.evolve(state.counts) for way, state in self._ways.items()}

    def handle_frame(self, source: int, frame: bytes, now: float) -> None:
        """Take a frame that a host has sent; see `take_due`."""
        target = frame[ADDRESS_BYTES - 1]
        if frame[0] & GROUP_BIT:
            for other in self.hosts:
                if other != source:
                    self._send((source, other), frame, now)
        elif (source, target) in self._ways:
            self._send((source, target), frame, now)

    def _send(self, way: Way, frame: bytes, now: float) -> None:
        state = self._ways[way]
        rule, size = state.rule, len(frame)
        is_lost = rule.is_cut or (rule.loss > 0 and self.chance.random() < rule.loss)
        if is_lost or state.waiting_bytes + size > WAITING_BYTES_MAX:
            state.counts.dropped += 1
            return
        state.sent_s = max(state.sent_s, now) + size / rule.bytes_per_s
        late_s = rule.delay_s + rule.jitter_s * (self.chance.random() if rule.jitter_s else 0.0)
        state.arrives_s = max(state.arrives_s, state.sent_s + late_s)
        state.waiting_bytes += size
        self._number += 1
        heapq.heappush(self._waiting, (state.arrives_s, self._number, way, frame))

    def next_deadline(self) -> float:
        """When the next frame is due; `math.inf` if none waits."""
        return self._waiting[0][0] if self._waiting else math.inf

    def take_due(self, now: float) -> list[tuple[int, bytes]]:
        """(target, frame) of all that arrive by now, in order."""
        due = []
        while self._waiting and self._waiting[0][0] <= now:
            _, _, way, frame = heapq.heappop(self._waiting)
            state = self._ways[way]
            state.waiting_bytes -= len(frame)
            if state.rule.is_cut:
                state.counts.dropped += 1
                continue
            state.counts.passed += 1
            due.append((way[1], frame))
        return due
