"""Faults of links: the n-th frame to one side is dropped, doubled or delayed.

Pure: for `link_pair`, and for a `MemoryMesh` of the transports.
"""

import enum
from collections import deque
from typing import TypeVar

import attrs

from ...transports.links.link import Side

T = TypeVar("T")


class FaultKind(enum.Enum):
    """Kind of fault at the n-th frame."""

    DROP = "drop"
    DOUBLE = "double"
    DELAY = "delay"  # it arrives after `NthFault.delay_frames` later ones


@attrs.define(eq=False)
class NthFault:
    """Fault on the way to one side. Pure: `pass_on` says what arrives in place of a frame.

    `reached` tells whether the fault has happened: loop over n until a run passes without it.
    """

    kind: FaultKind
    receiver: Side
    nth: int
    delay_frames: int = 2
    reached: bool = attrs.field(default=False, init=False)
    _seen: int = attrs.field(default=0, init=False)
    _held: deque[tuple[int, object]] = attrs.field(factory=deque, init=False)  # bound: one

    def pass_on(self, receiver: Side, frame: T) -> list[T]:
        """Frames that are delivered now; a delayed one is held until enough others have passed."""
        if receiver is not self.receiver:
            return [frame]
        self._seen += 1
        if self._seen != self.nth:
            return [frame, *self._release()]
        self.reached = True
        match self.kind:
            case FaultKind.DROP:
                return []
            case FaultKind.DOUBLE:
                return [frame, frame]
            case FaultKind.DELAY:
                self._held.append((self._seen + self.delay_frames, frame))
                return []

    def _release(self) -> list[T]:
        if self._held and self._held[0][0] <= self._seen:
            return [self._held.popleft()[1]]  # type: ignore[list-item]  # what we were given
        return []
