"""Held connection: one that the next life of this frontend can go on with, in mid-stream.

Writes what is about to be sent, and what follows it, into the connection's slot, and reads the
socket into it (`transports.takeover.slot`). What follows is a state of the layer that writes: of
HTTP, or of a WebSocket session. Events of a stream do not state it anew: a note says how far a
stream of HTTP is, and frames show it themselves.

Where it cannot be held, because a message is too large or memory is short, the slot says so, and
the connection ends with its frontend; it is held again when what was too much is over.
"""

from collections.abc import Callable
from typing import Protocol

import attrs
import msgspec

from ...transports.takeover.slot import RECORD_BYTES_MAX, ConnectionSlot, EndForm
from ...transports.takeover.tcp import SocketCalls
from ..connection_shares import MemoryBudget
from ..schema.fields import JsonObject

# A connection without a slot, such as an embedded server's.
NO_SLOT = -1
# Instead of a state: this connection ends with its frontend.
NOT_HELD = b""
# Free share of a connection's slot: its first page, and one of input.
FREE_BYTES = 8 * 2**10
# Budget of all connections of a frontend together; few messages are larger than the free ones.
BUDGET_BYTES = 128 * 2**20
# A stream may append so many times the bytes of its state before that is stated anew, while half of
# the budget is free for large messages.
APPENDED_STATES = 64


class HttpState(msgspec.Struct, array_like=True, tag="http", frozen=True):
    """State of a connection that speaks HTTP, from the first byte of kept input on.

    The request that begins there is answered from the beginning, under the id that was drawn for
    it if there is one; or, when `is_begun`, from behind the event of this position. `is_last`: it
    was answered, and the connection ends.
    """

    claimed: str = ""
    is_begun: bool = False
    position: str | int | None = None
    # `100 Continue` was said.
    is_continued: bool = False
    is_last: bool = False


class TurnState(msgspec.Struct, array_like=True, frozen=True):
    """A request of a lane: `message` is what the client sent, until its response is known by its id
    alone; then the events behind `number` follow. `granted` are tokens that the client allowed
    before that.
    """

    stream_id: str | None
    response_id: str
    message: bytes
    number: int | None = None
    granted: int = 0
    is_cancelled: bool = False


class GrantState(msgspec.Struct, array_like=True, frozen=True):
    """A response whose client has allowed it so many tokens in all."""

    response_id: str
    credit: int


class SessionState(msgspec.Struct, array_like=True, tag="socket", frozen=True):
    """State of a WebSocket, whose kept input begins behind a message.

    `turns` are those that run, and behind them those that wait in their lanes; `notices` are events
    of no response, and those with which a turn ended that has none. `grant` is the last one that a
    message made: its response has it perhaps, or not yet.
    """

    principal: str
    # The session's id, by which the store knows what is kept for it alone.
    session_id: str = ""
    names: list[str] = []
    turns: list[TurnState] = []
    notices: list[JsonObject] = []
    wants_events: bool = False
    # A close frame was sent.
    is_closing: bool = False
    grant: GrantState | None = None
    # The engine that its handshake named, as it came.
    rank: str | None = None


State = HttpState | SessionState
_encode = msgspec.msgpack.Encoder().encode
_decode_state = msgspec.msgpack.Decoder(State).decode
_decode_position = msgspec.msgpack.Decoder(str | int | None).decode
_decode_turn = msgspec.msgpack.Decoder(TurnState).decode


def encode_state(state: State) -> bytes:
    """Encode a state for the slot."""
    return _encode(state)


def decode_state(state: bytes) -> State | None:
    """Decode what `encode_state` made; None for a connection that is not held.

    Raises `msgspec.MsgspecError`.
    """
    return _decode_state(state) if state else None


def encode_position(position: str | int | None) -> bytes:
    """A note of how far a stream is."""
    return _encode(position)


def http_state_behind(state: HttpState, note: bytes) -> HttpState:
    """The state behind what has this note. Raises `msgspec.MsgspecError`."""
    return msgspec.structs.replace(state, position=_decode_position(note))


def encode_turn(turn: TurnState) -> bytes:
    """A note of a turn that is new."""
    return _encode(turn)


def session_with(session: SessionState, note: bytes) -> SessionState:
    """The session with the turn that this note brings. Raises `msgspec.MsgspecError`."""
    turn = _decode_turn(note)
    names = session.names if turn.stream_id is None else [*session.names, turn.stream_id]
    return msgspec.structs.replace(session, names=names, turns=[*session.turns, turn])


class HeldState(Protocol):
    """State behind the bytes that are written next, as its layer describes it."""

    @property
    def ending(self) -> EndForm:
        """How the root may end it behind what is written next, if there is no successor."""

    def describe(self) -> bytes:
        """The state, as `encode_state` makes it."""

    def note(self) -> bytes | None:
        """Note of the next bytes, if it alone says how the described state changed."""


@attrs.frozen
class FixedState:
    """State that does not change."""

    state: bytes = NOT_HELD
    ending: EndForm = EndForm.CUT

    def describe(self) -> bytes:
        return self.state

    def note(self) -> None: ...


def ignore_slot(slot: int) -> None:
    """Ignore a slot, where every one can be mapped."""


@attrs.define(eq=False)
class HeldSlots:
    """The slots of a frontend's connections; `on_ended` is called when one is closed."""

    # The bytes of a slot, as `SlotMappings.view`.
    view: Callable[[int], memoryview]
    on_ended: Callable[[int], None]
    # Says in an empty slot that nobody can go on from it, as `refuse_slot`.
    refuse: Callable[[int], None] = ignore_slot
    slot_type: type[ConnectionSlot] = ConnectionSlot
    # Beyond what each has for nothing.
    budget: MemoryBudget = attrs.field(factory=lambda: MemoryBudget(BUDGET_BYTES))

    def hold(self, slot: int, state: HeldState) -> "HeldStream":
        """A new connection in its slot, which is empty.

        Raises `OSError` or `ValueError` where there is no room to map it: then the slot says so.
        """
        try:
            memory = self.view(slot)
        except (OSError, ValueError):
            self.refuse(slot)
            raise
        return HeldStream(self.slot_type(memory), self.budget, state)


@attrs.define(eq=False)
class HeldStream:
    """The owner's side of one slot."""

    slot: ConnectionSlot
    budget: MemoryBudget
    state: HeldState
    # How many bytes were written, and read, since the connection began; of the last write, what the
    # kernel has perhaps not taken yet.
    written: int = 0
    unwritten: bytes | memoryview = b""
    received: int = 0
    # The first byte of the input that may be needed again.
    kept_from: int = 0
    # Whether a successor could go on with it now.
    is_held: bool = attrs.field(default=True, init=False)
    # The slot speaks of what is written up to here; -1: of nothing.
    _said_to: int = attrs.field(default=-1, init=False)
    # Records of this connection are appended to: they need room.
    _is_stream: bool = attrs.field(default=False, init=False)
    # The most that a record, and the input, have used of the slot.
    _record_bytes: int = attrs.field(default=0, init=False)
    _input_bytes: int = attrs.field(default=0, init=False)
    _taken: int = attrs.field(default=0, init=False)
    # Input was lost to a successor, which is said in the slot.
    _is_lost: bool = attrs.field(default=False, init=False)

    def follow(self, chunk: bytes | bytearray | memoryview) -> None:
        """Say that this is written next; what follows it is stated only where it must be."""
        if self._said_to == self.written:
            note = self.state.note()
            if note is not None:
                if self.slot.append(note, chunk, kept_from=self.kept_from):
                    self._said_to += len(chunk)
                    return
                self._is_stream = True
        self.publish(chunk)

    def publish(self, chunk: bytes | bytearray | memoryview = b"") -> None:
        """Say that this is written next, behind what is being written, and what follows it."""
        if self._is_lost and self.kept_from < self.received:
            return
        state = self.state.describe()
        said_to = self.written + len(chunk)
        if self.unwritten:
            chunk = b"".join((self.unwritten, chunk))
        size = len(state) + len(chunk)
        is_roomy = self._is_stream and self.budget.taken <= self.budget.bytes_max // 2
        room = APPENDED_STATES * len(state) if is_roomy else 0
        if not self._has_room(size + room):
            room = 0
            if not self._has_room(size):
                state, chunk = NOT_HELD, b""
        self._store(state, chunk, room)
        self._is_lost = False
        self._said_to = said_to if state else -1

    def refuse(self) -> None:
        """End with the frontend, until something is written: what is done now is done once."""
        self._store(NOT_HELD)

    def receive(self, calls: SocketCalls, fd: int, size: int) -> bytes:
        """Read from this socket. Raises what `os.read` does."""
        room = memoryview(b"") if self._is_lost else self.slot.input_room(self.received, size)
        data = bytes(room[: calls.readv(fd, [room])]) if room else calls.read(fd, size)
        self.received += len(data)
        kept = self.received - self.kept_from
        if not room or (kept > FREE_BYTES and not self._hold(self._record_bytes, kept)):
            self._lose()
        return data

    def release(self) -> None:
        """The connection has ended."""
        self.budget.taken -= self._taken
        self._taken = 0
        self.slot.release()

    def _store(
        self, state: bytes, chunk: bytes | bytearray | memoryview = b"", room: int = 0
    ) -> None:
        begin = self.written - len(self.unwritten)
        self.slot.publish(
            begin,
            state,
            chunk,
            kept_from=self.kept_from,
            received=self.received,
            room=room,
            ending=self.state.ending,
        )
        self._said_to, self.is_held = -1, bool(state)

    def _has_room(self, size: int) -> bool:
        if size <= FREE_BYTES // 2:
            return True
        return size <= RECORD_BYTES_MAX and self._hold(size, self._input_bytes)

    def _lose(self) -> None:
        if not self._is_lost:
            self._store(NOT_HELD)
            self._is_lost = True

    def _hold(self, record_bytes: int, input_bytes: int) -> bool:
        """Whether there is room for a record and input of these sizes, which may have been larger:
        pages that were used are not given back before the end.
        """
        record_bytes = max(record_bytes, self._record_bytes)
        input_bytes = max(min(input_bytes, self.slot.input_bytes), self._input_bytes)
        more = 2 * record_bytes + input_bytes - self._taken
        if self.budget.taken + more > self.budget.bytes_max:
            return False
        self._record_bytes, self._input_bytes = record_bytes, input_bytes
        self._taken += more
        self.budget.taken += more
        return True
