"""Restart policy of a supervisor: restart after a delay, or escalate.

Sans-IO: no clock, no tasks, no processes. Its owner carries out what is decided here.

The words are Erlang/OTP's, and every child is *permanent*: any exit calls for a restart. More than
`restart_limit` restarts of one child within `restart_period_s` seconds mean that restarting does
not help, so the policy escalates; a child that has served backs off instead, without
`gives_up_served`. A
*hopeless* exit escalates at once, and a *refused* start of a child that has never served: of one
that has, what it refuses for (a folder that is away) is a shortage. One that was *killed* from
outside after it had become ready, or died of a *request*, which is refused if it does so again,
says nothing about the child: it is restarted at once, and counts toward nothing. That a request was
to blame may be known only after a later death: then the run is *excused*. A kill before it
was ready again and a *shortage* (of memory, or what a run takes) do not count either once it has
been ready, but back off: whatever kills or starves it may do so as often as it likes.

Restarts back off. A *failed start*, an end before the child was ready or less than
`minimum_uptime_s` after, doubles the delay; a run of at least `quiet_s` begins again at the
smallest one; a run in between repeats the last.
"""

import enum
from collections import deque
from random import Random

import attrs

# Share by which a delay is lengthened or shortened at random, so that children which died together
# do not start together.
JITTER = 0.2


class Death(enum.Enum):
    """Kind of a run's end, by what it says about the next one."""

    FAULT = "fault"  # the child's own, as far as is known
    KILLED = "killed"  # by SIGKILL from outside, not for want of memory; or stopped from outside
    REQUEST = "request"  # what a client sent ended it, as far as is known
    # The owner lacked memory, a descriptor or a process, or the kernel memory while it ran.
    SHORTAGE = "shortage"
    REFUSED = "refused"  # the child says that it cannot start: a successor now neither
    HOPELESS = "hopeless"  # no successor could do better


@attrs.frozen
class Restart:
    """Start the child again at the time `at`, which is not before the exit."""

    child: str
    at: float


@attrs.frozen
class Escalate:
    """Restarting does not help: the supervisor fails, and its own one decides."""

    child: str
    restarts: int


Decision = Restart | Escalate


@attrs.define(eq=False)
class _ChildRecord:
    # Times of its restarts that count, and the runs that ended then, oldest first; at its last exit
    # none was older than the period.
    restarts: deque[tuple[float, int]] = attrs.field(factory=deque)  # bounded by restart_limit
    # The owner's number for the current run; 0 if none is on, or it gave none.
    run: int = 0
    # Whether a request is known to end the current run.
    is_excused: bool = False
    # When the current run became ready; None before that, and when no run is on.
    ready_at: float | None = None
    # Whether any run was ready so far.
    has_been_ready: bool = False
    # How often the delay has doubled; 0 means that the next one is the smallest.
    doublings: int = 0
    # Whether a delay was given since the last quiet run: the first one does not double.
    delayed: bool = False


@attrs.define(eq=False)
class SupervisionPolicy:
    """The policy of one supervisor for any number of children, each counted by itself.

    The defaults are the service's: three restarts in a minute, 0.1 to 5 s apart.
    """

    random: Random
    restart_limit: int = attrs.field(default=3, validator=attrs.validators.ge(0))
    restart_period_s: float = attrs.field(default=60.0, validator=attrs.validators.gt(0))
    backoff_min_s: float = attrs.field(default=0.1, validator=attrs.validators.gt(0))
    backoff_max_s: float = attrs.field(default=5.0, validator=attrs.validators.gt(0))
    # A process that serves for a second was able to start.
    minimum_uptime_s: float = attrs.field(default=1.0, validator=attrs.validators.ge(0))
    # The period itself: by then a child has no restart on its account any more.
    quiet_s: float = attrs.field(default=60.0, validator=attrs.validators.ge(0))
    # Whether too many faults end a child that was ready once; else it backs off, for ever.
    gives_up_served: bool = True
    # Whether the children were ready under a policy before this one.
    have_served: bool = False

    _children: dict[str, _ChildRecord] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        if self.backoff_max_s < self.backoff_min_s:
            raise ValueError("backoff_max_s is below backoff_min_s")

    def handle_starting(self, child: str, run: int) -> None:
        """A run of `child` begins that may be excused by this number, which no other has."""
        record = self._record(child)
        record.run, record.is_excused = run, False

    def handle_excused(self, run: int) -> None:
        """A request ended this run, or ends it now: it counts toward nothing any more."""
        for record in self._children.values():
            record.is_excused |= record.run == run
            for each in [each for each in record.restarts if each[1] == run]:
                record.restarts.remove(each)

    def is_excused(self, child: str) -> bool:
        """Whether a request is known to end the current run of `child`."""
        return self._record(child).is_excused

    def handle_ready(self, child: str, now: float) -> None:
        """The current run of `child` serves from now on."""
        record = self._record(child)
        record.ready_at, record.has_been_ready = now, True

    def handle_exit(self, child: str, now: float, death: Death = Death.FAULT) -> Decision:
        """The current run of `child` is over."""
        record = self._record(child)
        uptime_s = None if record.ready_at is None else now - record.ready_at
        run, is_excused = record.run, record.is_excused
        record.run, record.is_excused, record.ready_at = 0, False, None
        if is_excused and death is Death.FAULT:
            death = Death.REQUEST
        while record.restarts and record.restarts[0][0] <= now - self.restart_period_s:
            record.restarts.popleft()
        if uptime_s is not None and uptime_s >= self.quiet_s:
            record.doublings, record.delayed = 0, False
        if death in (Death.KILLED, Death.REQUEST) and uptime_s is not None:
            return Restart(child, at=now)
        counts = death is Death.FAULT or not record.has_been_ready
        is_over_limit = counts and len(record.restarts) == self.restart_limit
        is_lasting = record.has_been_ready and not self.gives_up_served
        is_refused = death is Death.REFUSED and not record.has_been_ready
        if death is Death.HOPELESS or is_refused or (is_over_limit and not is_lasting):
            del self._children[child]
            return Escalate(child, restarts=len(record.restarts))
        if counts and not is_over_limit:
            record.restarts.append((now, run))
        return Restart(child, at=now + self._next_delay_s(record, uptime_s))

    def _next_delay_s(self, record: _ChildRecord, uptime_s: float | None) -> float:
        failed_start = uptime_s is None or uptime_s < self.minimum_uptime_s
        if record.delayed and failed_start and self._backoff_s(record) < self.backoff_max_s:
            record.doublings += 1
        record.delayed = True
        return self._backoff_s(record) * self.random.uniform(1 - JITTER, 1 + JITTER)

    def _backoff_s(self, record: _ChildRecord) -> float:
        return min(self.backoff_max_s, self.backoff_min_s * 2.0**record.doublings)

    def _record(self, child: str) -> _ChildRecord:
        return self._children.setdefault(child, _ChildRecord(has_been_ready=self.have_served))

    def check_invariants(self) -> None:
        """Asserts what must hold after every event."""
        for record in self._children.values():
            assert len(record.restarts) <= self.restart_limit
            assert list(record.restarts) == sorted(record.restarts)
            assert self.backoff_min_s * 2.0 ** (record.doublings - 1) < self.backoff_max_s
            assert record.delayed or record.doublings == 0
