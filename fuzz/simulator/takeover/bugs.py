"""Bugs planted into takeover, each one rule broken, which its simulator must find; see `bugs`."""

import termios
from collections.abc import Callable
from typing import Any

import attrs
import msgspec

from ....api.http import connection as http_connection
from ....api.http import stream as http_stream
from ....api.http.connection import HttpConnection
from ....api.http.held import HeldStream, HttpState, SessionState, TurnState
from ....api.http.stream import BoundedStream
from ....api.serving import connection as serving_connection
from ....api.serving import takeover
from ....api.websocket import session as socket_session
from ....api.websocket.frames import FrameStream
from ....api.websocket.lanes import Turn
from ....api.websocket.session import SocketSession
from ....api.websocket.turns import SocketTurns
from ....runtime.continuity import held_connections
from ....runtime.continuity.connection_slots import ConnectionSlots
from ....runtime.continuity.held_connections import HeldConnections
from ....transports.takeover import slot as connection_slot
from ....transports.takeover import tcp
from ....transports.takeover.slot import ConnectionSlot, SlotRecord
from ....transports.takeover.tcp import SocketCalls
from ..bugs import bugs_of
from ..journal_bugs import Broken, Row, nothing

# {name: what happens to clients}
TAKEOVER_BREAKS: dict[str, str] = {
    "a slot is published after its write": "bytes that the kernel has are written again",
    "a slot has one half": "a death within a store leaves half a record",
    "what is appended is counted before it is stored": "a death between leaves noise",
    "what is appended is not gone through": "events come twice",
    "what the kernel has of a chunk is not counted": "the beginning of a chunk comes twice",
    "what the kernel has not of a chunk is dropped": "the end of a chunk is missing",
    "acknowledgements come between two looks": "too few bytes are counted, and come twice",
    "a client's FIN counts as a byte": "a byte is read that the client never sent",
    "an aborted connection is closed": "a stream that was cut ends as if it were whole",
    "an event's position is stated one late": "events come twice",
    "a request is let go when it was read": "a request that was not executed is lost",
    "a message is let go before its effect": "a request of a lane is lost",
    "a message that is taken drops what waits": "frames that the kernel did not take are lost",
    "an id is claimed after the admission": "a request is executed twice, under two ids",
    "100 Continue is forgotten": "a client is asked for its body twice",
    "a new turn is not stated": "what runs in a lane is not gone on with",
    "numbers of lanes are one behind": "events come twice",
    "a grant takes effect before it is stated": "a client's credit counts twice",
    "a grant is not stated": "a client's credit is lost",
    "an ended connection is passed on": "a connection that had ended in order is reset",
    "an ended connection's duplicate is kept": "the client never sees the end",
    "a slot is not cleared": "a connection goes on with the state of another",
    "input is kept from where it was read to": "half a request is lost",
    "what ends frontends is tried for ever": "one request ends frontend after frontend",
    "what runs counts as untried": "a stream is cut when its frontend dies often",
    "a trial never ends": "a slow request is cut that has ended no frontend",
    "a released slot stays taken": "connections end with their frontend, as no slot is left",
    "two connections have one slot": "a connection hangs whose frontend died",
}
# Which check finds it, by what that says; the first that fits.
TAKEOVER_CHECKS: dict[str, str] = {
    "bytes: a client gets what it gets when nothing dies": (
        r": part \d+ is |: got \d+ parts|no answer at byte|more came than"
    ),
    "exactly once: events have numbers, which grow": r": event number \d+ came after",
    "credit: no token beyond what a client allows": r" tokens, and credit for ",
    "executed once: what was admitted is not admitted again": r" was executed \d+ times",
    "survival: no connection ends by a death": (
        r"its connection was |ended before its answer|was given up"
    ),
    "bound: one connection ends few frontends": r" has ended \d+ frontends$",
    "accounts: a connection has a slot while one is free": r" has no slot, and ",
    "abort: a stream that is cut does not look whole": r"ended as if it were whole",
    "one end: every connection ends in bounded time": r"connections without end",
    "accounts: nothing is held for clients who are gone": r"held for clients who are gone",
}


async def _write_first(original: Broken, stream: BoundedStream, data: bytes) -> None:
    held = stream.held
    if held is None:
        await original(stream, data)
        return
    await stream._write(memoryview(data))
    held.written -= len(data)
    held.publish(data)
    held.written += len(data)


def _same_half(original: Broken, slot: ConnectionSlot, latest: int) -> int:
    place: int = original(latest & ~2)
    return place


def _count_first(
    original: Broken, slot: ConnectionSlot, note: bytes, chunk: bytes, *, kept_from: int
) -> bool:
    end = slot._end + connection_slot._APPENDED.size + len(note) + len(chunk)
    if end <= slot._end_max:
        slot._words[connection_slot._ENDS + (slot._latest >> 1 & 1)] = end
    fits: bool = original(slot, note, chunk, kept_from=kept_from)
    return fits


def _rest(find: Callable[[bytes], bytes]) -> Broken:
    def broken(original: Broken, stream: BoundedStream, *asked: Any) -> Any:
        found = original(stream, *asked)
        assert stream.held is not None
        record = stream.held.slot.record()
        return takeover.Takeover(
            found.state, find(b"" if record is None else record.output), found.kept_input
        )

    return broken


def _look_once(original: Broken, connection: Any, request: int, calls: SocketCalls) -> Any:
    info = tcp._info(connection)
    answer = calls.ioctl(connection, request, bytes(4))
    return info, tcp._INT.unpack(answer)[0]


def _count_fin(original: Broken, connection: Any, calls: SocketCalls) -> int:
    info, waiting = tcp._steady_info(connection, termios.FIONREAD, calls)
    return info.bytes_received - waiting


def _position_late() -> Broken:
    def broken(original: Broken, connection: HttpConnection, data: bytes, position: Any) -> Any:
        async def send() -> None:
            before = connection.state.position
            await original(connection, data, before)
            connection.state = msgspec.structs.replace(connection.state, position=position)

        return send()

    return broken


async def _let_go(original: Broken, connection: HttpConnection) -> bytes:
    body: bytes = await original(connection)
    connection.input.keep_from_here()
    return body


def _take_first(original: Broken, session: SocketSession, *event: Any) -> None:
    held = session.stream.transport.held
    if held is not None:
        held.kept_from = session.stream.message_end
        held.publish()
    original(session, *event)


def _drop_waiting(original: Broken, stream: FrameStream) -> None:
    held = stream.transport.held
    if held is not None:
        held.unwritten, held._said_to = b"", -1
    original(stream)


def _claim_late(original: Broken, connection: HttpConnection, *how: Callable[..., Any]) -> str:
    held, connection.stream.held = connection.stream.held, None
    claimed: str = original(connection, *how)
    connection.stream.held = held
    return claimed


def _forget_continue(original: Broken, state: Any) -> bytes:
    if isinstance(state, HttpState):
        state = msgspec.structs.replace(state, is_continued=False)
    encoded: bytes = original(state)
    return encoded


def _without_new(original: Broken, turns: SocketTurns) -> list[TurnState]:
    return [turn for turn in original(turns) if not turn.message]


def _note_nothing(original: Broken, turns: SocketTurns) -> bytes:
    original(turns)
    return b""


def _behind(original: Broken, turn: Turn) -> TurnState:
    state: TurnState = original(turn)
    number = max((state.number or 0) - 8, 0) or state.number
    return msgspec.structs.replace(state, number=number)


def _not_gone_through(original: Broken, record: SlotRecord) -> Any:
    return original(attrs.evolve(record, appended=()))


def _grant_first(original: Broken, session: SocketSession, event: Any) -> None:
    original(session, event)
    session._carry_out_grant()


def _without_grant(original: Broken, state: Any) -> Any:
    if isinstance(state, SessionState):
        state = msgspec.structs.replace(state, grant=None)
    return original(state)


def _keep_nothing(original: Broken, held: HeldStream, *asked: Any) -> bytes:
    data: bytes = original(held, *asked)
    held.kept_from = held.received
    return data


async def _no_end(original: Broken, slot: ConnectionSlot) -> None:
    pass


def _always(answer: bool) -> Broken:
    return lambda original, *asked: answer


def _share(original: Broken, slots: ConnectionSlots, connection_id: int) -> Any:
    if not slots._free:
        slots._free.append(0)
    return original(slots, connection_id)


_ROWS: tuple[Row, ...] = (
    ("a slot is published after its write", BoundedStream, "send_all", _write_first),
    ("a slot has one half", ConnectionSlot, "_place", _same_half),
    ("what is appended is counted before it is stored", ConnectionSlot, "append", _count_first),
    ("what is appended is not gone through", takeover, "_state_behind", _not_gone_through),
    (
        "what the kernel has of a chunk is not counted",
        serving_connection,
        "take_over",
        _rest(lambda chunk: chunk),
    ),
    (
        "what the kernel has not of a chunk is dropped",
        serving_connection,
        "take_over",
        _rest(lambda chunk: b""),
    ),
    ("acknowledgements come between two looks", tcp, "_steady_info", _look_once),
    ("a client's FIN counts as a byte", takeover, "bytes_read", _count_fin),
    ("an aborted connection is closed", http_stream, "abort", nothing),
    ("an event's position is stated one late", HttpConnection, "send_events", _position_late()),
    ("a request is let go when it was read", HttpConnection, "read_body", _let_go),
    ("a message is let go before its effect", SocketSession, "_handle_event", _take_first),
    ("a message that is taken drops what waits", FrameStream, "handle_taken", _drop_waiting),
    ("an id is claimed after the admission", HttpConnection, "claim", _claim_late),
    ("100 Continue is forgotten", http_connection, "encode_state", _forget_continue),
    ("a new turn is not stated", SocketTurns, "states", _without_new),
    ("a new turn is not stated", SocketTurns, "note_new", _note_nothing),
    ("numbers of lanes are one behind", Turn, "state", _behind),
    ("a grant takes effect before it is stated", SocketSession, "_handle_credit", _grant_first),
    ("a grant is not stated", socket_session, "encode_state", _without_grant),
    ("an ended connection is passed on", held_connections, "is_open", _always(True)),
    (
        "an ended connection's duplicate is kept",
        HeldConnections,
        "handle_ended",
        nothing,
    ),
    ("a slot is not cleared", held_connections, "free_slot", nothing),
    ("input is kept from where it was read to", HeldStream, "receive", _keep_nothing),
    ("what ends frontends is tried for ever", takeover, "_is_untried", _always(False)),
    ("what runs counts as untried", takeover, "_is_untried", _always(True)),
    ("a trial never ends", serving_connection, "end_trial", _no_end),
    ("a released slot stays taken", ConnectionSlots, "handle_cleared", nothing),
    ("two connections have one slot", ConnectionSlots, "offer", _share),
)
TAKEOVER_BUGS = bugs_of(_ROWS)
