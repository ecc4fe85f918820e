"""Decides who may join and when a child has booted: HELLO, INIT, progress, READY.

Sans-IO: messages and `now` in, decisions out. `control_channel` carries them out over the control
socket. The parent's side never trusts the order: what is stray, stale, doubled or late is refused
with a typed error. `Ignore` leaves the machine as it was; `Fail` ends it, since the only peer on
this connection can never become the right one. Must not know what INIT and READY carry.

    parent                        child
    AWAIT_HELLO   <- HELLO        (says so at once, then waits: a warm spare may wait for ever)
    BOOTING       -> INIT
                  <- PROGRESS     each re-arms the parent's deadline
    DONE          <- READY, or FAILED <- REFUSED, which no other child could do better

Dropped messages end in `HandshakeTimeout`, doubled ones in `Ignore`, delayed ones in either.
"""

import enum
import hmac
import math
from typing import assert_never

import attrs

from .handshake_messages import (
    WIRE_VERSION,
    DuplicateMessage,
    HandshakeError,
    HandshakeTimeout,
    Hello,
    Init,
    OutOfOrder,
    PeerRefused,
    Progress,
    Ready,
    Refused,
    StaleMessage,
    StrayPeer,
    TooLate,
    WrongKey,
    WrongVersion,
)

# A phase is a few words for a log line.
PHASE_CHARACTERS_MAX = 200
# A reason is a sentence, perhaps with two long paths in it.
REASON_CHARACTERS_MAX = 10_000
# Refusals that a timeout's text quotes; more would say nothing new.
REFUSALS_KEPT = 8


# ---- decisions


@attrs.frozen
class SendInit:
    """HELLO is accepted: send this, with the descriptors that belong to it."""

    message: Init


@attrs.frozen
class Advanced:
    """The child is further; the deadline has moved."""

    phase: str
    fraction: float


@attrs.frozen
class Initialised:
    """The child's side: INIT is here, booting may begin."""

    payload: bytes


@attrs.frozen
class Done:
    """READY is here, the handshake is over."""

    payload: bytes


@attrs.frozen
class Ignore:
    """Refused; count it and go on, nothing has changed."""

    error: HandshakeError


@attrs.frozen
class Fail:
    """Refused for good: raise it."""

    error: HandshakeError


ParentDecision = SendInit | Advanced | Done | Ignore | Fail
ChildDecision = Initialised | Ignore


class ParentState(enum.Enum):
    """Where the parent's side is. Each moves on only to the next, or to FAILED."""

    AWAIT_HELLO = "waiting for HELLO"
    BOOTING = "booting"
    DONE = "ready"
    FAILED = "refused"


@attrs.define(eq=False, kw_only=True)
class ParentSide:
    """The parent's side of one handshake with one child.

    `pid` None accepts any process (a remote peer). `boot_timeout_s` is time without progress.
    """

    who: str
    role: str
    init: bytes
    boot_timeout_s: float = attrs.field(validator=attrs.validators.gt(0))
    started_at: float
    epoch: int = 0
    pid: int | None = None
    key: bytes = b""
    wire_version: int = WIRE_VERSION

    state: ParentState = attrs.field(default=ParentState.AWAIT_HELLO, init=False)
    capabilities: tuple[str, ...] = attrs.field(default=(), init=False)
    # The last REFUSALS_KEPT of what was ignored, and how many there were.
    refusals: list[Exception] = attrs.field(factory=list, init=False)
    refused: int = attrs.field(default=0, init=False)
    _hello: Hello | None = attrs.field(default=None, init=False)
    _progress: Progress | None = attrs.field(default=None, init=False)
    _armed_at: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._armed_at = self.started_at

    @property
    def phase(self) -> str:
        """What is being waited for, in words, for errors and the task tree."""
        if self.state is ParentState.BOOTING and self._progress is not None:
            return f"{self._progress.phase} ({self._progress.fraction:.0%})"
        return self.state.value

    @property
    def booting(self) -> bool:
        """HELLO was accepted, READY is not here: what else the child says may be listened to."""
        return self.state is ParentState.BOOTING

    def handle_message(self, message: object, now: float) -> ParentDecision:
        """One message from the child; anything that is not the handshake's is out of order."""
        kind = type(message).__name__
        if self.state in (ParentState.DONE, ParentState.FAILED):
            return self._ignore(TooLate(self.who, kind))
        match message:
            case Hello():
                return self._handle_hello(message, now)
            case Progress() | Ready() | Refused() if self.state is ParentState.AWAIT_HELLO:
                return self._ignore(OutOfOrder(self.who, kind, self.phase))
            case Progress() | Ready() | Refused() if message.epoch != self.epoch:
                return self._ignore(StaleMessage(self.who, kind, message.epoch, self.epoch))
            case Progress():
                return self._handle_progress(message, now)
            case Ready():
                self.state = ParentState.DONE
                return Done(message.payload)
            case Refused():
                return self._fail(PeerRefused(self.who, message.reason[:REASON_CHARACTERS_MAX]))
            case _:
                return self._ignore(OutOfOrder(self.who, kind, self.phase))

    def handle_refusal(self, error: Exception) -> None:
        """Something that was no message came; kept for the timeout's text."""
        self._note(error)

    def next_deadline(self) -> float:
        """When `handle_timeout` is due; `math.inf` once the handshake is over."""
        if self.state in (ParentState.DONE, ParentState.FAILED):
            return math.inf
        return self._armed_at + self.boot_timeout_s

    def handle_timeout(self, now: float) -> Fail | None:
        """The deadline may have passed; a spurious call does nothing."""
        if now < self.next_deadline():
            return None
        phase = self.phase
        self.state = ParentState.FAILED
        texts = tuple(map(str, self.refusals))
        return Fail(HandshakeTimeout(self.who, phase, now - self._armed_at, texts))

    def check_invariants(self) -> None:
        """For fuzzers."""
        assert len(self.refusals) == min(self.refused, REFUSALS_KEPT)
        booted = self.state in (ParentState.BOOTING, ParentState.DONE)
        assert not booted or self._hello is not None
        assert self._progress is None or self._hello is not None

    def _handle_hello(self, hello: Hello, now: float) -> ParentDecision:
        if self._hello is not None:
            return self._ignore(DuplicateMessage(self.who, "Hello"))
        if hello.wire_version != self.wire_version:
            return self._fail(WrongVersion(self.who, hello.wire_version, self.wire_version))
        if not hmac.compare_digest(hello.key, self.key):
            return self._fail(WrongKey(self.who))
        if hello.role != self.role:
            return self._fail(StrayPeer(self.who, f"a process of role {hello.role!r}"))
        if self.pid is not None and hello.pid != self.pid:
            return self._fail(StrayPeer(self.who, f"process {hello.pid}, not {self.pid}"))
        self._hello = hello
        self.capabilities = hello.capabilities
        self.state = ParentState.BOOTING
        self._armed_at = now
        return SendInit(Init(epoch=self.epoch, payload=self.init))

    def _handle_progress(self, progress: Progress, now: float) -> ParentDecision:
        last = 0 if self._progress is None else self._progress.number
        if progress.number <= last:
            return self._ignore(DuplicateMessage(self.who, "Progress"))
        phase = progress.phase[:PHASE_CHARACTERS_MAX]
        fraction = min(max(progress.fraction, 0.0), 1.0) if progress.fraction >= 0 else 0.0
        self._progress = attrs.evolve(progress, phase=phase, fraction=fraction)
        self._armed_at = now
        return Advanced(phase, fraction)

    def _ignore(self, error: HandshakeError) -> Ignore:
        self._note(error)
        return Ignore(error)

    def _note(self, error: Exception) -> None:
        self.refused += 1
        self.refusals = [*self.refusals, error][-REFUSALS_KEPT:]

    def _fail(self, error: HandshakeError) -> Fail:
        self.state = ParentState.FAILED
        return Fail(error)


class ChildState(enum.Enum):
    """Where the child's side is."""

    AWAIT_INIT = "waiting for INIT"
    BOOTING = "booting"
    READY = "ready"
    REFUSED = "refused"


@attrs.define(eq=False, kw_only=True)
class ChildSide:
    """The child's side. It has no deadline: the parent's end or death ends the wait for INIT."""

    hello: Hello
    who: str = "the parent"

    state: ChildState = attrs.field(default=ChildState.AWAIT_INIT, init=False)
    refused: int = attrs.field(default=0, init=False)
    _init: Init | None = attrs.field(default=None, init=False)
    _progress_sent: int = attrs.field(default=0, init=False)

    def handle_message(self, message: object) -> ChildDecision:
        """One message from the parent."""
        kind = type(message).__name__
        match self.state:
            case ChildState.AWAIT_INIT if isinstance(message, Init):
                self._init = message
                self.state = ChildState.BOOTING
                return Initialised(message.payload)
            case ChildState.AWAIT_INIT:
                return self._ignore(OutOfOrder(self.who, kind, self.state.value))
            case _ if message == self._init:
                return self._ignore(DuplicateMessage(self.who, kind))
            case ChildState.BOOTING:
                return self._ignore(OutOfOrder(self.who, kind, self.state.value))
            case ChildState.READY | ChildState.REFUSED:
                return self._ignore(TooLate(self.who, kind))
            case _:
                assert_never(self.state)

    def progress(self, phase: str, fraction: float) -> Progress:
        """The message that says how far booting is."""
        assert self.state is ChildState.BOOTING, "progress belongs between INIT and READY"
        assert self._init is not None
        self._progress_sent += 1
        number = self._progress_sent
        return Progress(epoch=self._init.epoch, number=number, phase=phase, fraction=fraction)

    def ready(self, payload: bytes) -> Ready:
        """The message that ends the handshake."""
        assert self.state is ChildState.BOOTING, "READY is sent once, after INIT"
        assert self._init is not None
        self.state = ChildState.READY
        return Ready(epoch=self._init.epoch, payload=payload)

    def refuse(self, reason: str) -> Refused:
        """The message that ends the handshake for good, with a sentence for people."""
        assert self.state is ChildState.BOOTING, "a refusal belongs between INIT and READY"
        assert self._init is not None
        self.state = ChildState.REFUSED
        return Refused(epoch=self._init.epoch, reason=reason[:REASON_CHARACTERS_MAX])

    def next_deadline(self) -> float:
        """Never: a warm spare waits until its parent speaks or is gone."""
        return math.inf

    def _ignore(self, error: HandshakeError) -> Ignore:
        self.refused += 1
        return Ignore(error)
