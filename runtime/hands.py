"""Contents in hand: what a frontend parses, renders or tokenises, named in case it dies of it.

A fault of a library that reads what clients send ends the whole process. So a content is named
before such a library gets it, in a table behind the slots of the progress page, which the root
reads after a death (`processes.frontend_fleet`). It is known by a digest: what it is, whose, and
its bytes.

Contents that were in hand in a death are *suspects*: each is taken in hand again alone, for which
it waits, and others for it. The second death is its own (`processes.quarantine`): until that is
forgotten it is refused in every frontend, before anything reads it.
"""

import enum
import hashlib
import struct
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import attrs

from ..nurseries.processes.progress_page import SLOT_BYTES, open_page_table
from ..nurseries.tasks.background import waiting_for
from ..nurseries.tasks.changes import Changes
from .errors import RequestQuarantined
from .messages import Doubted

# A loop and its threads have few contents in hand at a time; what has no place waits for one.
PLACES = 64
_PLACE = struct.Struct("=16sQ")  # digest, whether it is in hand
_CONTENT_BYTES = 16
TABLE_BYTES = PLACES * _PLACE.size


class ContentKind(enum.StrEnum):
    """Kind of a content in hand: the same bytes may be harmless to another reader."""

    HEAD = "head"  # of an HTTP request
    CHUNKS = "chunks"  # of its body, with their framing, as they came
    BODY = "body"  # JSON, of an HTTP request
    FRAME = "frame"  # of a WebSocket: its text without the mask, as much as came at once
    MESSAGE = "message"  # JSON, of a WebSocket
    CHAT = "chat"  # on its way through the chat template
    TEXT = "text"  # on its way to the tokenizer
    TOKENS = "tokens"  # on their way back


def content_of(kind: ContentKind, principal: str, data: bytes) -> bytes:
    """Hash that knows a content when it is sent again."""
    digest = hashlib.blake2b(data, digest_size=_CONTENT_BYTES)
    digest.update(f"\0{kind}\0{principal}".encode())
    return digest.digest()


def read_hands(table: bytes) -> list[bytes]:
    """Contents that were in hand when this was read."""
    whole = len(table) - len(table) % _PLACE.size
    return [content for content, is_held in _PLACE.iter_unpack(table[:whole]) if is_held]


class Hold:
    """A content in hand for the block of this, if it is named at all."""

    def __init__(self, hands: "Hands | None" = None, content: bytes = b"") -> None:
        self.hands, self.content, self.place = hands, content, 0

    def __enter__(self) -> None:
        if self.hands is not None:
            self.place = self.hands.begin(self.content)

    def __exit__(self, *_: object) -> None:
        if self.hands is not None:
            self.hands.end(self.place)


_UNNAMED = Hold()


@attrs.define(eq=False)
class Hands:
    """Contents that one process has in hand. `memory` is its table; None names nothing."""

    memory: memoryview | None = None
    # Called when `passed` has one more.
    on_passed: Callable[[], None] = lambda: None
    # Suspects that were in hand to the end, until they are reported; each is one of `_suspects`.
    passed: list[bytes] = attrs.field(factory=list, init=False)
    # {place: what is in hand there}, and places where nothing is.
    _held: dict[int, bytes] = attrs.field(factory=dict, init=False)
    _free: list[int] = attrs.field(factory=lambda: list(range(PLACES)), init=False)
    # Bounded by the requests that are admitted, and the connections that are open.
    _waiting: list[bytes] = attrs.field(factory=list, init=False)
    _suspects: frozenset[bytes] = attrs.field(default=frozenset(), init=False)
    # {content: until when, by CLOCK_MONOTONIC}
    _refused: dict[bytes, float] = attrs.field(factory=dict, init=False)
    # A waiting one may have its turn.
    _changed: Changes = attrs.field(factory=Changes, init=False)

    @property
    def are_named(self) -> bool:
        """Whether anything is."""
        return self.memory is not None

    def handle_doubted(self, doubted: Doubted) -> None:
        """Know from now on what frontends died of, perhaps."""
        self._suspects, self._refused = frozenset(doubted.suspects), doubted.refused
        self._changed.notify()

    def refusals(self) -> dict[bytes, float]:
        """Refusals of every frontend now: {content: for so many seconds more}."""
        now_s = time.monotonic()
        left = {content: until - now_s for content, until in self._refused.items()}
        return {content: left_s for content, left_s in left.items() if left_s > 0.0}

    async def take(self, kind: ContentKind, principal: str, data: bytes) -> Hold:
        """Have the turn of this content; it is in hand within the block of what is returned, which
        must be entered at once. One block may not lie in another.

        Raises `RequestQuarantined`. No checkpoint while nothing is suspected.
        """
        if self.memory is None or not data:
            return _UNNAMED
        content = content_of(kind, principal, data)
        if self._suspects or self._refused or not self._free:
            await self._wait_turn(content)
        return Hold(self, content)

    async def _wait_turn(self, content: bytes) -> None:
        self._check(content)
        if self._may_begin(content):
            return
        self._waiting.append(content)
        try:
            with waiting_for("its turn, since a frontend may die of it or of another"):
                while not self._may_begin(content):
                    await self._changed.wait()
                    self._check(content)
        finally:
            self._waiting.remove(content)
            self._changed.notify()

    def _check(self, content: bytes) -> None:
        left_s = self._refused.get(content, 0.0) - time.monotonic()
        if left_s > 0.0:
            raise RequestQuarantined(left_s)

    def _may_begin(self, content: bytes) -> bool:
        if content in self._suspects:
            return not self._held
        others = (*self._held.values(), *self._waiting)
        return bool(self._free) and self._suspects.isdisjoint(others)

    def begin(self, content: bytes) -> int:
        """Name it; returns its place."""
        assert self.memory is not None
        place = self._free.pop()
        self._held[place] = content
        at = place * _PLACE.size
        self.memory[at : at + _PLACE.size] = _PLACE.pack(content, 1)
        return place

    def end(self, place: int) -> None:
        """Nothing dies of it any more."""
        assert self.memory is not None
        at = place * _PLACE.size
        self.memory[at : at + _PLACE.size] = bytes(_PLACE.size)
        content = self._held.pop(place)
        self._free.append(place)
        if content in self._suspects and content not in self.passed:
            self.passed.append(content)
            self.on_passed()
        if self._waiting:
            self._changed.notify()

    def check_invariants(self) -> None:
        """A suspect is alone."""
        assert len(self._held) == 1 or self._suspects.isdisjoint(self._held.values())
        assert len(self._held) + len(self._free) == PLACES


def open_table(page_fd: int | None) -> AbstractContextManager[memoryview | None]:
    """The table on the progress page of a process without workers; None where there is none."""
    return open_page_table(page_fd, SLOT_BYTES, TABLE_BYTES)
