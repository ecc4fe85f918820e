"""Fuzzes both sides of the handshake with stray, stale, doubled and malformed messages.

Invariant: only the right peer's messages, in order and once, move it on; all else is refused.
"""

from collections import Counter
from collections.abc import Sequence
from random import Random

import attrs

from ...transports.codec import MalformedMessage
from ...transports.control.handshake import (
    Advanced,
    ChildSide,
    ChildState,
    Done,
    Fail,
    Ignore,
    Initialised,
    ParentSide,
    ParentState,
    SendInit,
)
from ...transports.control.handshake_messages import (
    WIRE_VERSION,
    HandshakeError,
    HandshakeMessage,
    Hello,
    Init,
    Progress,
    Ready,
    Refused,
)
from ..fuzzer import Fuzzer

PID, EPOCH, KEY, ROLE = 100, 3, b"key", "worker"
BOOT_TIMEOUT_S = 10.0
GOOD_HELLO = Hello(wire_version=WIRE_VERSION, role=ROLE, pid=PID, key=KEY)


@attrs.frozen
class Sides:
    """The two machines, to be replaced by wrong ones."""

    parent: type[ParentSide] = ParentSide
    child: type[ChildSide] = ChildSide


@attrs.frozen
class ToParent:
    """A message that reaches the parent, from the child or from whoever."""

    message: HandshakeMessage


@attrs.frozen
class ToChild:
    """A message that reaches the child."""

    message: HandshakeMessage


@attrs.frozen
class Malformed:
    """Bytes that were no message reach the parent."""


@attrs.frozen
class Wait:
    """Time passes, and the parent looks at its deadline."""

    seconds: float


Event = ToParent | ToChild | Malformed | Wait


def draw(chance: Random, count: int) -> list[Event]:
    """Mostly good messages, in any order; each field is wrong now and then."""
    return [_draw_event(chance) for _ in range(count)]


def _draw_event(chance: Random) -> Event:
    which = chance.random()
    if which < 0.1:
        return Wait(chance.choice((0.0, 1.0, 5.0, BOOT_TIMEOUT_S)))
    if which < 0.15:
        return Malformed()
    message = _draw_message(chance)
    return ToParent(message) if chance.random() < 0.7 else ToChild(message)


def _draw_message(chance: Random) -> HandshakeMessage:
    def mostly(right: int, *wrong: int) -> int:
        return right if chance.random() < 0.9 else chance.choice(wrong)

    epoch = mostly(EPOCH, EPOCH - 1, EPOCH + 1, -1, 2**63 - 1)
    match chance.choice((Hello, Hello, Init, Progress, Progress, Ready, Refused)):
        case kind if kind is Hello:
            return Hello(
                wire_version=mostly(WIRE_VERSION, 0, WIRE_VERSION + 1),
                role=ROLE if chance.random() < 0.9 else "engine",
                pid=mostly(PID, PID + 1, 0, -1),
                key=KEY if chance.random() < 0.9 else chance.choice((b"", b"kez", b"keyy")),
            )
        case kind if kind is Init:
            return Init(epoch=epoch, payload=chance.choice((b"", b"one", b"two")))
        case kind if kind is Progress:
            fraction = chance.choice((0.0, 0.5, 1.0, -1.0, 7.0, float("nan"), float("inf")))
            number = chance.choice((-1, 0, 1, 2, 3, 2**63 - 1))
            phase = chance.choice(("load", "x" * 1000))
            return Progress(epoch=epoch, number=number, phase=phase, fraction=fraction)
        case kind if kind is Ready:
            return Ready(epoch=epoch, payload=chance.choice((b"", b"ready")))
        case _:
            return Refused(epoch=epoch, reason=chance.choice(("no", "x" * 20_000)))


def check(events: Sequence[Event], sides: Sides) -> Counter[str]:
    """Both sides at once; each decision is judged by what was true before the message."""
    parent = sides.parent(
        who="worker 1",
        role=ROLE,
        init=b"init",
        boot_timeout_s=BOOT_TIMEOUT_S,
        started_at=0.0,
        epoch=EPOCH,
        pid=PID,
        key=KEY,
    )
    child = sides.child(hello=GOOD_HELLO)
    reached: Counter[str] = Counter()
    now = 0.0
    for event in events:
        match event:
            case ToParent(message=message):
                reached[_check_parent(parent, message, now)] += 1
            case ToChild(message=message):
                reached[_check_child(child, message)] += 1
            case Malformed():
                parent.handle_refusal(MalformedMessage("it was told to be"))
            case Wait(seconds=seconds):
                now += seconds
                reached["timeout"] += _check_timeout(parent, now)
        parent.check_invariants()
    return reached


def _check_parent(parent: ParentSide, message: HandshakeMessage, now: float) -> str:
    state, deadline = parent.state, parent.next_deadline()
    decision = parent.handle_message(message, now)
    is_over = state in (ParentState.DONE, ParentState.FAILED)
    is_ours = not isinstance(message, Hello) and message.epoch == EPOCH
    booting = state is ParentState.BOOTING and is_ours
    match decision:
        case SendInit(message=init):
            assert state is ParentState.AWAIT_HELLO
            assert message == GOOD_HELLO
            assert init == Init(epoch=EPOCH, payload=b"init")
        case Advanced(phase=phase, fraction=fraction):
            assert booting
            assert isinstance(message, Progress)
            assert 0 <= fraction <= 1
            assert len(phase) <= 200
            assert parent.next_deadline() == now + BOOT_TIMEOUT_S
        case Done(payload=payload):
            assert booting
            assert isinstance(message, Ready)
            assert payload == message.payload
        case Fail(error=error):
            assert not is_over
            assert isinstance(error, HandshakeError)
            assert isinstance(message, Hello) or (booting and isinstance(message, Refused))
            assert message != GOOD_HELLO
        case Ignore(error=error):
            assert isinstance(error, HandshakeError)
            assert (parent.state, parent.next_deadline()) == (state, deadline), "it counts only"
            assert message != GOOD_HELLO or state is not ParentState.AWAIT_HELLO
            assert not (booting and isinstance(message, Ready | Refused))
    return f"parent {type(decision).__name__}"


def _check_child(child: ChildSide, message: HandshakeMessage) -> str:
    state = child.state
    decision = child.handle_message(message)
    if isinstance(decision, Initialised):
        assert isinstance(message, Init)
        assert state is ChildState.AWAIT_INIT
        assert decision.payload == message.payload
        assert child.progress("load", 0.0).epoch == message.epoch
    else:
        assert child.state is state
        assert isinstance(decision.error, HandshakeError)
        assert not (isinstance(message, Init) and state is ChildState.AWAIT_INIT)
    return f"child {type(decision).__name__}"


def _check_timeout(parent: ParentSide, now: float) -> bool:
    is_due = now >= parent.next_deadline()
    decision = parent.handle_timeout(now)
    assert (decision is not None) == is_due
    assert decision is None or isinstance(decision.error, HandshakeError)
    return is_due


class _Ageless(ParentSide):
    """Planted: an earlier incarnation's READY counts."""

    def handle_message(self, message: object, now: float) -> object:  # type: ignore[override]
        """Takes any epoch for its own."""
        if isinstance(message, Ready):
            message = attrs.evolve(message, epoch=self.epoch)
        return super().handle_message(message, now)


class _Keyless(ParentSide):
    """Planted: nobody's key is looked at."""

    def _handle_hello(self, hello: Hello, now: float) -> object:  # type: ignore[override]
        return super()._handle_hello(attrs.evolve(hello, key=self.key), now)


class _Restless(ParentSide):
    """Planted: a refused message moves the deadline."""

    def _ignore(self, error: HandshakeError) -> Ignore:
        self._armed_at += 1.0
        return super()._ignore(error)


class _Forgetful(ChildSide):
    """Planted: INIT is taken again and again."""

    def handle_message(self, message: object) -> Initialised | Ignore:
        """Waits for INIT for ever."""
        self.state = ChildState.AWAIT_INIT
        return super().handle_message(message)


FUZZER = Fuzzer[Event, Sides](
    name="handshake",
    invariant="only the right peer moves a handshake on, in order and once; all else is refused",
    draw=draw,
    check=check,
    target=Sides(),
    faults={
        "an old incarnation's READY counts": Sides(parent=_Ageless),
        "no key is looked at": Sides(parent=_Keyless),
        "a refused message moves the deadline": Sides(parent=_Restless),
        "the child takes INIT twice": Sides(child=_Forgetful),
    },
    round_events=20,
    smoke_rounds=400,
    reaches=frozenset(
        {
            *("parent SendInit", "parent Advanced", "parent Done", "parent Fail"),
            *("parent Ignore", "child Initialised", "child Ignore", "timeout"),
        }
    ),
)
