"""End of a child process, judged: what ended it, and what that says about the next one.

Sans-IO. A child judges its end once; a fleet and its policy read the kind alone.
"""

import enum

import attrs

from ...engine.errors import BootRefused
from ...nurseries.processes.hang_watch import ProcessHung
from ...nurseries.processes.process_exit import ProcessDied, ProcessExit, ProcessStuck
from ...nurseries.tasks.supervision_policy import Death
from ...transports.control.handshake import HandshakeError


class EndKind(enum.Enum):
    """Kind of a child's end."""

    STOPPED = "stopped in order"
    HANDED_OVER = "ended as it was asked to, for its next life"
    KILLED = "killed, or stopped for ever, from outside"
    FAULT = "ended by what it did, or did not come up"
    REQUEST = "ended by what a client sent, as far as is known"
    # Counts as a fault does, but nothing that the child did is to blame: an exit with code 0, say.
    UNASKED = "ended without an order, for no known reason"
    SHORTAGE = "no memory, descriptor or process for it"
    # The child's fault, as it may have asked for too much; says nothing of a successor.
    EXCESS = "ended for want of what the system refused it"
    REFUSED = "says that it cannot start"
    STUCK = "outlives SIGKILL in the kernel, or a process of its own does"


_DEATHS = {
    EndKind.HANDED_OVER: Death.KILLED,
    EndKind.KILLED: Death.KILLED,
    EndKind.FAULT: Death.FAULT,
    EndKind.REQUEST: Death.REQUEST,
    EndKind.UNASKED: Death.FAULT,
    EndKind.SHORTAGE: Death.SHORTAGE,
    EndKind.EXCESS: Death.SHORTAGE,
    EndKind.REFUSED: Death.REFUSED,
    EndKind.STUCK: Death.HOPELESS,
}


@attrs.frozen
class ChildEnd:
    """End of one child. `cause` is the predicate of a sentence about it."""

    kind: EndKind
    cause: str
    # The error that ended the run; None if it was stopped in order.
    error: Exception | None = None

    @property
    def is_own_fault(self) -> bool:
        """Whether what it did ended it, and no request that is refused from now on."""
        return self.kind in (EndKind.FAULT, EndKind.EXCESS)

    @property
    def death(self) -> Death:
        """Death for the policy of restarts; there is none of an ordered stop."""
        return _DEATHS[self.kind]

    @property
    def failure(self) -> Exception:
        """The error of an end that was not ordered."""
        assert self.error is not None, "it was stopped in order"
        return self.error

    @property
    def reason(self) -> str:
        """A sentence for a place that is given up after this end."""
        if isinstance(self.error, ProcessDied):  # its last words are in the log of the death
            return f"it died too often; the last time it {self.cause}"
        return str(self.error)


STOPPED = ChildEnd(EndKind.STOPPED, "was stopped")


def end_of(error: Exception) -> ChildEnd:
    """Judge what ended a run, or kept it from its begin."""
    match error:
        case ProcessDied():
            return ChildEnd(_kind_of(error.exit), error.exit.cause, error)
        case ProcessHung():
            kind = EndKind.FAULT if error.is_own_fault else EndKind.KILLED
            return ChildEnd(kind, error.cause, error)
        case BootRefused():
            return ChildEnd(EndKind.REFUSED, f"refused to start: {error}", error)
        case HandshakeError():
            return ChildEnd(EndKind.FAULT, f"did not come up: {error}", error)
        case ProcessStuck():
            return ChildEnd(EndKind.STUCK, f"failed: {error}", error)
        case OSError():  # ours: no process, memory or descriptor for it
            return ChildEnd(EndKind.SHORTAGE, f"failed: {error}", error)
        case _:
            return ChildEnd(EndKind.UNASKED, f"failed: {error}", error)


def _kind_of(how: ProcessExit) -> EndKind:
    if how.has_handed_over:
        return EndKind.HANDED_OVER
    if how.was_killed:
        return EndKind.KILLED
    if how.was_starved:
        return EndKind.SHORTAGE
    if how.was_short:
        return EndKind.EXCESS
    return EndKind.FAULT if how.is_own_fault else EndKind.UNASKED
