"""Hang watch: decides from its progress page when a process, or a child of it, stands still.

Sans-IO: slots, what /proc says, and `now` in; hangs out. The caller reads both, and kills.

A process that moves on, or has nothing to do, is never suspected. Of others time is counted against
a deadline:

    runnable        CPU time of the thread that used most: a small quota makes none late
    asleep          wall time in which no thread of it ran
    D, unkillable   the same
    stopped         wall time, also of one that has nothing to do; begins anew when it runs
    dying           wall time of the process itself, against `DYING_S`: it hangs in the kernel

Wall time is counted between two looks that saw the same, and never more than was planned between
them: a watcher that is late, or was stopped with all others, knows nothing of the time between. It
forgets nothing either: on a machine where it is always late, hangs are found late.

Place 0 is the process, the others its children, by rank. A child owes the step that the process
shows. It has max(500 ms, 5 × predicted); `patience_s` where nothing is predicted, as of the first
steps, which load and measure. The process itself computes nothing: its loop has 500 ms for a pass.
Where a pass may compute for as long as it likes, only sleep within one is counted, against a longer
deadline, `blocked_s`: a lock that is never released, as that of a thread that found no memory to
begin with (`threading.Thread.start` waits for it for ever). So is a child's loop judged while no
step is owed: as it boots. Whoever is known by pid alone boots, and has not come to its page yet.
"""

import enum
from collections.abc import Mapping, Sequence

import attrs

from .progress_page import SlotState

# A pause of a machine, a page from a disk: nothing in order takes so long.
DEADLINE_MIN_S = 0.5
# Steps of one kind vary by less; contexts grow slowly enough for predictions to follow.
PREDICTED_FACTOR = 5.0
# A disk under pressure may hold a write for seconds.
BLOCKED_S = 5.0
# Giving back a hundred GiB takes seconds: as long as `LadderTimes.kill_s`.
DYING_S = 10.0
# Between two looks, while something moves or is suspected, and else.
PERIOD_BUSY_S = 0.05
PERIOD_IDLE_S = 0.25


class ProcessState(enum.Enum):
    """State of a process with its threads: the first of these that any of them is in."""

    GONE = "dying"  # or dead, and not reaped
    TRACED = "traced"  # someone debugs it: nothing is counted
    STOPPED = "stopped"
    RUNNABLE = "computing"
    UNINTERRUPTIBLE = "in uninterruptible sleep"
    ASLEEP = "asleep"


@attrs.frozen
class ProcessLook:
    """Figures of /proc on a process: CPU seconds of each thread, and how often any ran.

    Of one that owes nothing its first thread is enough.
    """

    state: ProcessState
    cpu_s: Mapping[int, float] = attrs.field(factory=dict)
    runs: int = 0


@attrs.frozen
class Hang:
    """The process whose slot has this number stands still; `reason` ends a sentence about it.

    `is_own_fault`: unlike one that was stopped.
    """

    number: int
    pid: int
    reason: str
    is_own_fault: bool = True


@attrs.frozen
class ProcessHung(Exception):
    """A process stood still and was killed for it; `cause` says which and how.

    `is_own_fault` as in `Hang`: not that of a process that was stopped from outside.
    """

    process: str
    cause: str
    is_own_fault: bool = True

    def __str__(self) -> str:
        return f"{self.process} was killed: {self.cause}"


_Mark = tuple[int, int, int, int]


@attrs.define(eq=False)
class _Account:
    """Time counted for a slot since it moved last."""

    # The pid, changes, passes and step owed at the last look: if one differs, the slot has moved.
    mark: _Mark = (0, 0, 0, 0)
    slot: SlotState = attrs.field(factory=SlotState)
    look: ProcessLook | None = None
    owed_s: float = 0.0
    stopped_s: float = 0.0
    dying_s: float = 0.0
    # The hang was reported.
    is_reported: bool = False

    def restart(self, mark: _Mark) -> None:
        self.is_reported &= mark[0] == self.mark[0]
        self.mark, self.look = mark, None
        self.owed_s = self.stopped_s = self.dying_s = 0.0


@attrs.define(eq=False)
class HangWatch:
    """Call `handle_page`, look at the slots that it returns, call `handle_looks`; then wait for
    `period_s`, and again."""

    slots: int
    patience_s: float = attrs.field(validator=attrs.validators.gt(0))
    blocked_s: float | None = None
    period_s: float = attrs.field(default=PERIOD_BUSY_S, init=False)
    # Most wall time that counts now.
    _wall_s: float = attrs.field(default=0.0, init=False)
    _seen_at: float | None = attrs.field(default=None, init=False)
    _accounts: list[_Account] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._accounts = [_Account() for _ in range(self.slots)]

    def handle_page(
        self, slots: Sequence[SlotState], now: float, pids: Mapping[int, int] = {}
    ) -> dict[int, int]:
        """The slots as they are; returns {its number: pid} of those that have not moved.

        `pids` by slot, as far as they are known: a process that does not show yet has its start to
        do, whatever another has left in its slot.
        """
        elapsed_s = 0.0 if self._seen_at is None else now - self._seen_at
        self._wall_s = min(elapsed_s, self.period_s)
        self._seen_at = now
        still: dict[int, int] = {}
        for number, (slot, account) in enumerate(zip(slots, self._accounts, strict=True)):
            if slot.pid != (pid := pids.get(number, slot.pid)):
                # In its first pass, where passes are judged by sleep.
                slot = SlotState(pid, passes=0 if self._blocked_s(number) else 1)
            if not slot.is_torn:
                account.slot = slot
            if not slot.pid:
                continue
            owed = self._accounts[0].slot.step if number else 0
            mark = slot.pid, slot.change, slot.passes, owed
            if mark == account.mark:
                still[number] = slot.pid
            else:
                account.restart(mark)
        is_moving = len(still) < sum(slot.pid > 0 for slot in slots)
        is_busy = is_moving or self._accounts[0].slot.step > 0
        # Movement is no reason to look often where only a sleep of seconds counts as a hang.
        is_close = is_busy and self.blocked_s is None
        self.period_s = PERIOD_BUSY_S if is_close else PERIOD_IDLE_S
        return still

    def handle_looks(self, looks: Mapping[int, ProcessLook]) -> list[Hang]:
        """Count time by the states of the slots of `handle_page`; returns new hangs, each once."""
        hangs = []
        for number, look in looks.items():
            account = self._accounts[number]
            self._count(number, account, look)
            if look.state is ProcessState.STOPPED or self.owes(number):
                self.period_s = PERIOD_BUSY_S
            spent_s, deadline_s = self._most(number, account)
            if spent_s >= deadline_s:
                hangs += self._report(number, account, look.state, spent_s)
        return hangs

    def _count(self, number: int, account: _Account, look: ProcessLook) -> None:
        before, account.look = account.look, look
        owes = self.owes(number)
        if look.state in (ProcessState.GONE, ProcessState.TRACED):
            account.owed_s = account.stopped_s = 0.0
            # A child that is gone may wait for long for a successor.
            is_dying = look.state is ProcessState.GONE and not number
            account.dying_s = account.dying_s + self._wall_s if before and is_dying else 0.0
            return
        if not owes:
            account.owed_s = 0.0
        if before is None:
            return
        has_run = look.runs != before.runs
        if look.state is not ProcessState.STOPPED or has_run:
            account.stopped_s = 0.0
        elif before.state is look.state:
            account.stopped_s += self._wall_s
            return
        if owes:
            idle_s = self._wall_s if before.state is look.state else 0.0
            is_run = has_run or look.state is ProcessState.RUNNABLE
            used_s = 0.0 if self._blocked_s(number) else _cpu_used(before, look)
            account.owed_s += used_s if is_run else idle_s

    def _blocked_s(self, number: int) -> float | None:
        """How long it may be asleep in a pass, if what it computes in one is not counted."""
        if number:
            return None if self._accounts[0].slot.step else BLOCKED_S
        return self.blocked_s

    def owes(self, number: int) -> bool:
        """Whether it has something to do, and waits for no other process that has to do first.

        Of one that has not only a stop counts.
        """
        slot = self._accounts[number].slot
        if number == 0:
            return slot.is_busy
        step = self._accounts[0].slot.step
        owes = slot.is_busy or (step > 0 and slot.step < step)
        return owes and slot.awaits is None

    def _most(self, number: int, account: _Account) -> tuple[float, float]:
        """Time counted for a slot, and its deadline."""
        if account.dying_s:
            return account.dying_s, DYING_S
        predicted_s = PREDICTED_FACTOR * self._accounts[0].slot.predicted_s if number else 0.0
        deadline_s = max(DEADLINE_MIN_S, predicted_s)
        if (blocked_s := self._blocked_s(number)) and not account.stopped_s:
            return account.owed_s, blocked_s
        if account.stopped_s or not number or account.is_reported:
            return max(account.stopped_s, account.owed_s), deadline_s
        return account.owed_s, deadline_s if predicted_s else self.patience_s

    def _report(
        self, number: int, account: _Account, state: ProcessState, spent_s: float
    ) -> list[Hang]:
        step = self._accounts[0].slot.step
        where = f" in step {step}" if step else ""
        reason = f"hung{where}: {state.value} for {spent_s:.1f} s"
        is_own_fault = state not in (ProcessState.STOPPED, ProcessState.GONE)
        pid, was_reported = account.mark[0], account.is_reported
        account.is_reported = True
        account.owed_s = account.stopped_s = account.dying_s = 0.0
        if not was_reported:
            return [Hang(number, pid, reason, is_own_fault)]
        if number and not self._accounts[0].is_reported:
            # The rank was killed and is still there: its engine must not wait for it.
            self._accounts[0].is_reported = True
            reason = f"waits for rank {number - 1}, which {reason}"
            return [Hang(0, self._accounts[0].mark[0], reason, is_own_fault)]
        return []

    def check_invariants(self) -> None:
        """Nothing negative is counted, and of what has just moved nothing."""
        for account in self._accounts:
            counted = account.owed_s, account.stopped_s, account.dying_s
            assert min(counted) >= 0.0
            assert account.look is not None or not any(counted)
        assert 0.0 <= self._wall_s <= PERIOD_IDLE_S


def _cpu_used(before: ProcessLook, look: ProcessLook) -> float:
    """CPU seconds of the thread that used most between two looks."""
    used = [cpu_s - before.cpu_s.get(thread, cpu_s) for thread, cpu_s in look.cpu_s.items()]
    return max(used, default=0.0)
