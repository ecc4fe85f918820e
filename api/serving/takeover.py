"""Takeover of a connection: what the process before this one had written, read, and meant to do.

The root passes a connection with its slot; here the two become one that is served. Where a life of
this frontend began it, the kernel says how far its bytes have come, and the slot what was to
follow. It must be quiet meanwhile: only its owner, which is gone, would have written or read.
"""

import attrs
import msgspec
import trio

from ...transports.takeover.slot import ConnectionSlot, SlotRecord
from ...transports.takeover.tcp import TcpCountsUnknown, bytes_accepted, bytes_read, is_open
from ..http.held import (
    FixedState,
    HeldSlots,
    HeldStream,
    HttpState,
    SessionState,
    State,
    decode_state,
    http_state_behind,
    session_with,
)
from ..http.stream import BoundedStream
from ..websocket.frames import sent_texts
from ..websocket.lanes import session_behind

# Lives that may die right after they have begun with a connection, of something that was not named
# (`runtime.hands`). One that died of a content, or was killed from outside, does not count: that is
# taken back by the root (`HeldConnections`).
LIVES_MAX = 2
# A process that lives so long after that did not die of it.
TRIAL_S = 1.0
_NEW = SlotRecord(0, b"", b"", 0)


class TakeoverRefused(Exception):
    """Why a connection cannot go on: it ends with the process that began it."""


@attrs.frozen
class Takeover:
    """How to go on: write the rest, then what the state says, with this input."""

    state: State
    rest: bytes
    kept_input: bytes


def take_over(stream: BoundedStream, slots: HeldSlots | None, slot: int) -> Takeover:
    """Hold a connection that another process has begun, and say how to go on.

    Raises `TakeoverRefused`.
    """
    assert isinstance(stream.transport, trio.SocketStream)
    if slots is None:
        raise TakeoverRefused("this frontend has no slots")
    socket = stream.transport.socket
    try:
        if not is_open(socket):
            raise TakeoverRefused("it was ending")
        held = slots.slot_type.found(slots.view(slot))
        accepted = bytes_accepted(socket, stream.calls)
        received = bytes_read(socket, stream.calls)
        record, kept = held.record(), held.kept_input(received)
        state = HttpState() if record is None else _state_behind(record)
        is_untried = _is_untried(state, kept)
    except (TcpCountsUnknown, OSError, ValueError, msgspec.MsgspecError) as error:
        raise TakeoverRefused(str(error)) from error
    if state is None:
        raise TakeoverRefused("it was not held")
    record = record or _NEW
    if not 0 <= accepted - record.begin <= len(record.output):
        raise TakeoverRefused("its slot does not say what was written")
    if is_untried:
        if held.lives >= LIVES_MAX:
            raise TakeoverRefused("frontends died when they went on with it")
        held.lives += 1
    stream.held = HeldStream(
        held,
        slots.budget,
        FixedState(),
        written=accepted,
        received=received,
        kept_from=record.kept_from,
    )
    return Takeover(state, record.output[accepted - record.begin :], kept)


def _state_behind(record: SlotRecord) -> State | None:
    """State behind everything that was said. Raises `msgspec.MsgspecError`."""
    match decode_state(record.state):
        case HttpState() as state:
            return http_state_behind(state, record.appended[-1][0]) if record.appended else state
        case SessionState() as state:
            for note, chunk in record.appended:
                state = session_with(state, note) if note else state
                state = session_behind(state, sent_texts(chunk))
            return state
        case None:
            return None


def _is_untried(state: State | None, kept: bytes) -> bool:
    """Whether something is read, or run, anew that may have killed the process before this one.

    What was admitted is the adoption's to judge.
    """
    match state:
        case HttpState(is_begun=is_begun):
            return bool(kept) and not is_begun
        case SessionState(turns=turns):
            return bool(kept) or any(turn.message for turn in turns)
        case None:
            return False


async def end_trial(slot: ConnectionSlot) -> None:
    """Background task `takeover-trial`: a process that lives so long did not die of this
    connection, whatever it has said on it.
    """
    await trio.sleep(TRIAL_S)
    slot.lives = 0
