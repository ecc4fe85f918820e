"""Boot handshake of a parent and the child that it spawned: HELLO, INIT, progress, READY.

    parent                        child
    AWAIT_HELLO   <- HELLO        role and pid, at once; then it waits (a warm spare for long)
    BOOTING       -> INIT         with descriptors beside it
                  <- PROGRESS     each re-arms the parent's deadline
    DONE          <- READY, or FAILED <- REFUSED, which no other child could do better

`ParentSide` is the state machine, sans-IO: messages and `now` in, decisions out.
`perform_parent_handshake` and `perform_child_handshake` are the shells over a control channel. Its
inherited socketpair loses nothing, keeps the order and shows that the peer is our own child, so
there is no key, version or epoch. What is unexpected all the same is dropped, and quoted when the
deadline passes. The payloads of INIT and READY are opaque here.
"""

import enum
import math
import os
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol, assert_never

import attrs
import trio

from ..codec import MalformedMessage
from .passed_fds import close_fds

# A phase is a few words for a log line.
PHASE_CHARACTERS_MAX = 200
# A reason is a sentence, perhaps with two long paths in it.
REASON_CHARACTERS_MAX = 10_000
# The name of a setting: some ten characters, nested ones thirty.
PARAMETER_CHARACTERS_MAX = 100
# Unexpected messages that a timeout's text quotes; more would say nothing new.
DROPPED_KEPT = 8

OnProgress = Callable[[str, float], None]
# Gets what a child says beside its handshake, with descriptors that it then owns.
OnOther = Callable[[object, Sequence[int]], None]


# ---- messages


@attrs.frozen
class Hello:
    """The child's first message: what it is."""

    role: str
    pid: int


@attrs.frozen
class Init:
    """Configuration that the child boots with."""

    payload: bytes


@attrs.frozen
class Progress:
    """The child is alive and this far: `fraction` (0 to 1) of `phase` (a few words)."""

    phase: str
    fraction: float


@attrs.frozen
class Ready:
    """The child serves. `payload` is what its parent plans with."""

    payload: bytes


@attrs.frozen
class Refused:
    """Instead of READY: neither this child nor another one can do what INIT asks.

    `reason` is a sentence for people; where a setting is at fault, `parameter` names it, and the
    sentence goes on behind the name. The child then waits to be stopped.
    """

    reason: str
    parameter: str = ""


HANDSHAKE_MESSAGES = (Hello, Init, Progress, Ready, Refused)


# ---- errors


class HandshakeError(Exception):
    """Base of what ends a handshake early; `who` names the peer. Not raised itself."""


@attrs.frozen
class StrayPeer(HandshakeError):
    """HELLO is of another role or process id than the child's that was spawned."""

    who: str
    found: str

    def __str__(self) -> str:
        return f"expected {self.who}, found {self.found}"


@attrs.frozen
class HandshakeTimeout(HandshakeError):
    """No progress for `waited_s`; `dropped` is what came instead, in words."""

    who: str
    phase: str
    waited_s: float
    dropped: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.who} made no progress for {self.waited_s:g} s in the phase: {self.phase}"
        return "; ".join([text, *self.dropped])


@attrs.frozen
class PeerLeft(HandshakeError):
    """The connection ended before the handshake did."""

    who: str
    phase: str

    def __str__(self) -> str:
        return f"{self.who} left in the phase: {self.phase}"


@attrs.frozen
class PeerRefused(HandshakeError):
    """The peer refused INIT for good. Unlike after `PeerLeft`, trying again is of no use."""

    who: str
    reason: str
    parameter: str = ""

    def __str__(self) -> str:
        return f"{self.who} refused: {f'{self.parameter} {self.reason}'.lstrip()}"


# ---- the parent's state machine

# INIT is to be sent, PROGRESS and READY are accepted, an error ends the handshake.
ParentDecision = Init | Progress | Ready | HandshakeError


class ParentState(enum.Enum):
    """State of the parent's side. Each moves on only to the next, or to FAILED."""

    AWAIT_HELLO = "waiting for HELLO"
    BOOTING = "booting"
    DONE = "ready"
    FAILED = "refused"


@attrs.define(eq=False, kw_only=True)
class ParentSide:
    """The parent's side of one handshake. `boot_timeout_s` is time without progress."""

    who: str
    role: str
    pid: int
    init: bytes
    boot_timeout_s: float = attrs.field(validator=attrs.validators.gt(0))
    started_at: float

    state: ParentState = attrs.field(default=ParentState.AWAIT_HELLO, init=False)
    # The child's phase in words, for errors.
    phase: str = attrs.field(default=ParentState.AWAIT_HELLO.value, init=False)
    # The last DROPPED_KEPT of what was dropped.
    dropped: list[str] = attrs.field(factory=list, init=False)
    _armed_at: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._armed_at = self.started_at

    def handle_message(self, message: object, now: float) -> ParentDecision | None:
        """Handle a message from the child; None if it is dropped, which moves nothing."""
        match (self.state, message):
            case (ParentState.AWAIT_HELLO, Hello()):
                return self._handle_hello(message, now)
            case (ParentState.BOOTING, Progress()):
                phase = message.phase[:PHASE_CHARACTERS_MAX]
                fraction = min(message.fraction, 1.0) if message.fraction >= 0 else 0.0
                self.phase = f"{phase} ({fraction:.0%})"
                self._armed_at = now
                return Progress(phase, fraction)
            case (ParentState.BOOTING, Ready()):
                self.state = ParentState.DONE
                return message
            case (ParentState.BOOTING, Refused()):
                reason = message.reason[:REASON_CHARACTERS_MAX]
                parameter = message.parameter[:PARAMETER_CHARACTERS_MAX]
                return self._fail(PeerRefused(self.who, reason, parameter))
        kind = type(message).__name__
        self.handle_dropped(f"{self.who} sent {kind} in the phase: {self.phase}")
        return None

    def handle_dropped(self, text: str) -> None:
        """Note what was dropped, in words, for the timeout's text."""
        self.dropped = [*self.dropped, text][-DROPPED_KEPT:]

    def next_deadline(self) -> float:
        """When `handle_timeout` is due; `math.inf` once the handshake is over."""
        if self.state in (ParentState.DONE, ParentState.FAILED):
            return math.inf
        return self._armed_at + self.boot_timeout_s

    def handle_timeout(self, now: float) -> HandshakeError | None:
        """The deadline may have passed; a spurious call does nothing."""
        if now < self.next_deadline():
            return None
        waited_s = now - self._armed_at
        return self._fail(HandshakeTimeout(self.who, self.phase, waited_s, tuple(self.dropped)))

    def _handle_hello(self, hello: Hello, now: float) -> ParentDecision:
        if hello.role != self.role:
            return self._fail(StrayPeer(self.who, f"a process of role {hello.role!r}"))
        if hello.pid != self.pid:
            return self._fail(StrayPeer(self.who, f"process {hello.pid}, not {self.pid}"))
        self.state = ParentState.BOOTING
        self.phase = self.state.value
        self._armed_at = now
        return Init(self.init)

    def _fail(self, error: HandshakeError) -> HandshakeError:
        self.state = ParentState.FAILED
        return error


# ---- the shells


class HandshakeChannel(Protocol):
    """The two calls of `ControlChannel` that a handshake makes; that class needs the messages
    above."""

    async def send(self, message: object, fds: Sequence[int] = ()) -> None: ...

    async def receive_any(self) -> tuple[object, list[int]]: ...


async def perform_parent_handshake(
    channel: HandshakeChannel,
    init_payload: bytes,
    *,
    who: str,
    role: str,
    pid: int,
    boot_timeout_s: float,
    fds: Sequence[int] = (),
    on_progress: OnProgress | None = None,
    on_other: OnOther | None = None,
) -> bytes:
    """Wait for the child's HELLO, send INIT with `fds`, wait for READY; returns READY's payload.

    `who` names the child in errors ("worker 1"); `on_progress(phase, fraction)` is called for each
    PROGRESS, which re-arms the deadline: `boot_timeout_s` is time without progress. What an
    accepted child says beside its handshake goes to `on_other`, which must not raise and owns the
    descriptors; without one, or before HELLO, it is dropped. It does not re-arm the deadline.

    Raises a `HandshakeError` that says who and in which phase. Cancellation: the child is left
    where it is, and the channel is of no use for another handshake.
    """
    machine = ParentSide(
        who=who,
        role=role,
        pid=pid,
        init=init_payload,
        boot_timeout_s=boot_timeout_s,
        started_at=trio.current_time(),
    )
    try:
        while True:
            decision: ParentDecision | None = None
            with trio.move_on_at(machine.next_deadline()):
                decision = await _receive_decision(channel, machine, on_other)
            if decision is None:
                decision = machine.handle_timeout(trio.current_time())
            match decision:
                case Init():
                    with trio.move_on_at(machine.next_deadline()):
                        await channel.send(decision, fds)
                case Progress(phase=phase, fraction=fraction):
                    if on_progress is not None:
                        on_progress(phase, fraction)
                case Ready(payload=payload):
                    return payload
                case HandshakeError():
                    raise decision
                case None:
                    pass
                case _:
                    assert_never(decision)
    except (trio.EndOfChannel, trio.BrokenResourceError) as error:
        raise PeerLeft(who, machine.phase) from error


async def _receive_decision(
    channel: HandshakeChannel, machine: ParentSide, on_other: OnOther | None
) -> ParentDecision | None:
    try:
        message, fds = await channel.receive_any()
    except MalformedMessage as error:
        machine.handle_dropped(str(error))
        return None
    booting = machine.state is ParentState.BOOTING
    if booting and on_other is not None and not isinstance(message, HANDSHAKE_MESSAGES):
        on_other(message, fds)
        return None
    close_fds(fds)
    return machine.handle_message(message, trio.current_time())


@attrs.define(eq=False)
class ChildHandshake:
    """The child between INIT and READY. `fds` came beside INIT and are the child's to close.

    All methods raise what `ControlChannel.send` raises; a parent that is gone is the death
    monitor's.
    """

    init: bytes
    fds: list[int]
    _channel: HandshakeChannel
    # Neither READY nor a refusal has been sent.
    booting: bool = attrs.field(default=True, init=False)

    async def progress(self, phase: str, fraction: float) -> None:
        """Send how far booting is: `fraction` (0 to 1) of `phase` (a few words)."""
        assert self.booting, "progress belongs between INIT and READY"
        await self._channel.send(Progress(phase, fraction))

    async def ready(self, payload: bytes) -> None:
        """Send that booting is done. Once, and nothing of the handshake after it."""
        assert self.booting, "READY is sent once"
        self.booting = False
        await self._channel.send(Ready(payload))

    async def refuse(self, reason: str, parameter: str = "") -> NoReturn:
        """Send that this child, and any like it, can never do what INIT asks: see `Refused`.

        Waits for the end that the parent then makes, since a death would be taken for a failure
        like others; returns only by being cancelled.
        """
        assert self.booting, "a refusal is sent instead of READY"
        self.booting = False
        await self._channel.send(Refused(reason[:REASON_CHARACTERS_MAX], parameter))
        await trio.sleep_forever()


async def perform_child_handshake(channel: HandshakeChannel, role: str) -> ChildHandshake:
    """Say HELLO and wait for INIT, for ever if need be: a warm spare does just that.

    Raises `PeerLeft` if the parent ends first. Cancellation loses no descriptor.
    """
    try:
        await channel.send(Hello(role, os.getpid()))
        while True:
            try:
                message, fds = await channel.receive_any()
            except MalformedMessage:
                continue  # the parent's deadline ends a hopeless case
            if isinstance(message, Init):
                return ChildHandshake(message.payload, fds, channel)
            close_fds(fds)
    except (trio.EndOfChannel, trio.BrokenResourceError) as error:
        raise PeerLeft("the parent", "waiting for INIT") from error
