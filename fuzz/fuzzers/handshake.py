"""Fuzzes the parent's side of the boot handshake with messages in any order, and with time.

Invariant: only the expected child moves it on, step by step; all else is dropped.
"""

from collections import Counter
from collections.abc import Sequence
from random import Random

import attrs

from ...transports.control.handshake import (
    HandshakeError,
    Hello,
    Init,
    ParentDecision,
    ParentSide,
    ParentState,
    Progress,
    Ready,
    Refused,
)
from ..fuzzer import Fuzzer, each

PID, ROLE = 100, "worker"
BOOT_TIMEOUT_S = 10.0
GOOD_HELLO = Hello(ROLE, PID)


@attrs.frozen
class Wait:
    """Time passes, and the parent looks at its deadline."""

    seconds: float


def _draw_event(chance: Random) -> object:
    """Mostly good messages, in any order; a HELLO is wrong now and then."""
    fraction = chance.choice((0.0, 0.5, 1.0, -1.0, 7.0, float("nan"), float("inf")))
    kinds: tuple[tuple[object, int], ...] = (
        (GOOD_HELLO, 5),
        (Hello("engine", PID), 1),
        (Hello(ROLE, chance.choice((PID + 1, 0, -1))), 1),
        (Progress(chance.choice(("load", "x" * 1000)), fraction), 8),
        (Ready(chance.choice((b"", b"ready"))), 2),
        (Refused(chance.choice(("no", "x" * 20_000))), 1),
        (Init(b"one"), 1),
        ("another object", 1),
        (Wait(chance.choice((0.0, 1.0, 5.0, BOOT_TIMEOUT_S))), 4),
    )
    events, weights = zip(*kinds, strict=True)
    return chance.choices(events, weights)[0]


def check(events: Sequence[object], side: type[ParentSide]) -> Counter[str]:
    """Each decision is judged by what was true before the message."""
    parent = side(
        who="worker 1",
        role=ROLE,
        pid=PID,
        init=b"init",
        boot_timeout_s=BOOT_TIMEOUT_S,
        started_at=0.0,
    )
    reached: Counter[str] = Counter()
    now = 0.0
    for event in events:
        if isinstance(event, Wait):
            now += event.seconds
            is_due = now >= parent.next_deadline()
            assert (parent.handle_timeout(now) is not None) == is_due
            reached["timeout"] += is_due
            continue
        state, deadline = parent.state, parent.next_deadline()
        decision = parent.handle_message(event, now)
        _check_decision(state, event, decision)
        if decision is None:
            assert (parent.state, parent.next_deadline()) == (state, deadline), "it is dropped"
        elif parent.state is ParentState.BOOTING:
            assert parent.next_deadline() == now + BOOT_TIMEOUT_S
        reached[type(decision).__name__] += 1
    return reached


def _check_decision(state: ParentState, event: object, decision: ParentDecision | None) -> None:
    """The whole table: what each message does in each state."""
    match (state, event):
        case (ParentState.AWAIT_HELLO, Hello()):
            assert decision == Init(b"init") if event == GOOD_HELLO else _is_error(decision)
        case (ParentState.BOOTING, Progress()):
            assert isinstance(decision, Progress)
            assert 0 <= decision.fraction <= 1
            assert len(decision.phase) <= 200
        case (ParentState.BOOTING, Ready()):
            assert decision == event
        case (ParentState.BOOTING, Refused()):
            assert _is_error(decision)
        case _:
            assert decision is None


def _is_error(decision: object) -> bool:
    return isinstance(decision, HandshakeError)


class _Hasty(ParentSide):
    """Planted: READY counts before HELLO."""

    def handle_message(self, message: object, now: float) -> ParentDecision | None:
        """Handle READY as if HELLO had come."""
        if isinstance(message, Ready) and self.state is ParentState.AWAIT_HELLO:
            self.state = ParentState.BOOTING
        return super().handle_message(message, now)


class _Trusting(ParentSide):
    """Planted: any process id is the child's."""

    def _handle_hello(self, hello: Hello, now: float) -> ParentDecision:
        return super()._handle_hello(attrs.evolve(hello, pid=self.pid), now)


class _Restless(ParentSide):
    """Planted: what is dropped moves the deadline."""

    def handle_dropped(self, text: str) -> None:
        """Re-arms."""
        self._armed_at += 1.0
        super().handle_dropped(text)


class _Forgetful(ParentSide):
    """Planted: HELLO is taken again and again."""

    def handle_message(self, message: object, now: float) -> ParentDecision | None:
        """Waits for HELLO for ever."""
        if isinstance(message, Hello) and self.state is ParentState.BOOTING:
            self.state = ParentState.AWAIT_HELLO
        return super().handle_message(message, now)


FUZZER = Fuzzer[object, type[ParentSide]](
    name="handshake",
    invariant="only the expected child moves a handshake on, step by step; all else is dropped",
    draw=each(_draw_event),
    check=check,
    target=ParentSide,
    faults={
        "READY counts before HELLO": _Hasty,
        "no process id is looked at": _Trusting,
        "a dropped message moves the deadline": _Restless,
        "HELLO is taken twice": _Forgetful,
    },
    round_events=20,
    smoke_rounds=400,
    reaches=frozenset(
        {"Init", "Progress", "Ready", "NoneType", "StrayPeer", "PeerRefused", "timeout"}
    ),
)
