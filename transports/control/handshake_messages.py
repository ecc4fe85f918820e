"""What is said in a handshake, and every way in which it can be refused, each with its own type.

    HandshakeError
     +-- WrongVersion, WrongKey, StrayPeer     the wrong peer: this connection ends
     +-- StaleMessage, DuplicateMessage,
     |   OutOfOrder, TooLate                   one wrong message: it is counted and dropped
     +-- HandshakeTimeout, PeerLeft,           the right peer, but it did not come this far
     +-- PeerRefused                           it will never do what INIT asks, and says why

Sans-IO: plain data; `handshake` decides with it. Must not know what INIT and READY carry.
"""

import attrs

# Of this handshake's own messages and of how frames are packed; counts breaking changes.
WIRE_VERSION = 1


# ---- messages


@attrs.frozen(kw_only=True)
class Hello:
    """The child's first message: what it is. `key` was given to it, and to nobody else, at spawn.

    Over an inherited socketpair the pair itself is the proof and the key is empty.
    """

    wire_version: int
    role: str
    pid: int
    key: bytes = b""
    capabilities: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Init:
    """What the child is to become. `epoch` is echoed by what it says afterwards."""

    epoch: int
    payload: bytes


@attrs.frozen(kw_only=True)
class Progress:
    """The child is alive and this far; `number` counts from 1, `fraction` is of this phase."""

    epoch: int
    number: int
    phase: str
    fraction: float


@attrs.frozen(kw_only=True)
class Ready:
    """The child serves. `payload` is what its parent plans with."""

    epoch: int
    payload: bytes


@attrs.frozen(kw_only=True)
class Refused:
    """The child cannot do what INIT asks, and another one could not either. Instead of READY.

    `reason` is a sentence for people. The child then waits to be stopped.
    """

    epoch: int
    reason: str


HandshakeMessage = Hello | Init | Progress | Ready | Refused
HANDSHAKE_MESSAGES = (Hello, Init, Progress, Ready, Refused)


# ---- errors


class HandshakeError(Exception):
    """Base of everything that keeps a peer from joining; `who` names it. Not raised itself."""


@attrs.frozen
class WrongVersion(HandshakeError):
    """The peer speaks another wire version: two installations are mixed."""

    who: str
    version: int
    expected: int

    def __str__(self) -> str:
        return f"{self.who} speaks wire version {self.version}, this process {self.expected}"


@attrs.frozen
class WrongKey(HandshakeError):
    """The peer does not hold the one-time key of the process that was expected here."""

    who: str

    def __str__(self) -> str:
        return f"{self.who} has not the key it was given"


@attrs.frozen
class StrayPeer(HandshakeError):
    """Somebody, but not who was expected: another role or another process id."""

    who: str
    found: str

    def __str__(self) -> str:
        return f"expected {self.who}, found {self.found}"


@attrs.frozen
class StaleMessage(HandshakeError):
    """A message of another epoch: an earlier incarnation still speaks."""

    who: str
    kind: str
    epoch: int
    expected: int

    def __str__(self) -> str:
        return f"{self.who} sent {self.kind} of epoch {self.epoch}, expected {self.expected}"


@attrs.frozen
class DuplicateMessage(HandshakeError):
    """A message that was there before."""

    who: str
    kind: str

    def __str__(self) -> str:
        return f"{self.who} sent {self.kind} twice"


@attrs.frozen
class OutOfOrder(HandshakeError):
    """A message that is not due in this phase, or is never sent in this direction."""

    who: str
    kind: str
    phase: str

    def __str__(self) -> str:
        return f"{self.who} sent {self.kind} in the phase: {self.phase}"


@attrs.frozen
class TooLate(HandshakeError):
    """A message of a handshake that is over."""

    who: str
    kind: str

    def __str__(self) -> str:
        return f"{self.who} sent {self.kind} after its handshake was over"


@attrs.frozen
class HandshakeTimeout(HandshakeError):
    """No progress for `waited_s`; `refusals` are what came instead, in words."""

    who: str
    phase: str
    waited_s: float
    refusals: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.who} made no progress for {self.waited_s:g} s in the phase: {self.phase}"
        return "; ".join([text, *self.refusals])


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

    def __str__(self) -> str:
        return f"{self.who} refused: {self.reason}"
