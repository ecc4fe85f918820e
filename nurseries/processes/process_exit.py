"""Exit of a process: how it ended, whose fault that was, and the errors that say so.

`process` reaps, and makes these.
"""

import signal

import attrs

from .boot import EXIT_SHORTAGE

_FAULT_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
# Exit code after one of the process's own was killed from outside: neither is at fault.
EXIT_CHILD_KILLED = 72
# Exit code after one of its own was killed for want of memory: so was it, in effect.
EXIT_CHILD_STARVED = 74
# Exit code of a process that was asked to end, and leaves its work to its next life.
EXIT_HANDED_OVER = 73


@attrs.frozen
class ProcessExit:
    """How a process ended: by exit `code`, or by `signal`; both None if it was reaped elsewhere, or
    a debugger keeps it from being reaped.
    """

    process: str
    pid: int
    code: int | None
    signal: int | None
    last_words: str = ""
    # The kernel has killed for want of memory just before, and probably this very process.
    out_of_memory: bool = False

    @property
    def was_killed(self) -> bool:
        """Whether the process, or one of its own, was killed from outside; also if it handed over,
        which is no fault either.
        """
        killed = self.signal == signal.SIGKILL and not self.out_of_memory
        return killed or self.code == EXIT_CHILD_KILLED or self.has_handed_over

    @property
    def was_starved(self) -> bool:
        """Whether it, or a process of its own, was killed for want of memory. That is no fault of
        it either: the kernel takes who is large, not who has grown, and other programs grow too.
        """
        starved = self.signal == signal.SIGKILL and self.out_of_memory
        return starved or self.code == EXIT_CHILD_STARVED

    @property
    def was_short(self) -> bool:
        """Whether the process ended for want of what the system refused. What it did may have asked
        for too much, so this is a fault; but of a successor it says nothing.
        """
        return self.code == EXIT_SHORTAGE

    @property
    def has_handed_over(self) -> bool:
        """Whether it has ended as it was asked to, for its next life."""
        return self.code == EXIT_HANDED_OVER

    @property
    def is_own_fault(self) -> bool:
        """Whether what it did ended it; a SIGKILL comes from outside."""
        is_fault = bool(self.code) or self.signal in _FAULT_SIGNALS
        return is_fault and not self.was_killed and not self.was_starved

    def describe(self) -> str:
        """Predicate of a sentence about the exit: "was killed by SIGKILL"."""
        if self.signal is not None:
            why = " (out of memory)" if self.out_of_memory else ""
            return f"was killed by {signal.Signals(self.signal).name}{why}"
        if self.has_handed_over:
            return "handed over to its next life"
        if self.code is not None:
            return f"exited with code {self.code}"
        return "is gone, and how it ended is not known"

    @property
    def cause(self) -> str:
        """`describe`, and the first line of its last words, if it left any."""
        headline = self.last_words.strip().partition("\n")[0]
        return f"{self.describe()}: {headline}" if headline else self.describe()


@attrs.frozen
class ProcessDied(Exception):
    """A process ended without being asked to; code 0 is no excuse. `exit` says how."""

    exit: ProcessExit

    def __str__(self) -> str:
        # The cause is in the first line, because a death further up reports no more of this one.
        sentence = f"{self.exit.process} (pid {self.exit.pid}) {self.exit.cause}"
        words = self.exit.last_words.strip()
        return f"{sentence}\nits last words:\n{words}" if "\n" in words else sentence


@attrs.frozen
class ProcessStuck(Exception):
    """A process outlived SIGKILL by `waited_s` seconds: it hangs in the kernel.

    Unlike `ProcessDied` this is about a process that ought to be dead; what it held is still held.
    """

    process: str
    pid: int
    waited_s: float

    def __str__(self) -> str:
        return (
            f"{self.process} (pid {self.pid}) is still there {self.waited_s} s after SIGKILL;"
            " it hangs in the kernel"
        )
