"""Place: one rank of a fleet, through all lives that have it.

Sans-IO: what happens to the process of the place, and `now`, in; what comes next out. The shell is
`process_supervisor`, which runs one child at a time in each place.

    state      means                                         left by
    WAITING    no process; the next one is due at `due_s`    starting, or over: it cannot begin
    STARTING   a process boots                               ready, failing, gone
    READY      its process said READY                        failing, gone
    FAILING    its process is as good as gone                gone
    GONE       the end of its process was seen; its workers  over
               may be there yet
    GIVEN_UP   restarting does not help                      begin

Whatever state it is in, an operator may have it begun anew (`begin`), with an empty account. It may
also be told to leave (`handle_leaving`): then no life follows the present one.
"""

import enum

import attrs

from ...nurseries.tasks.supervision_policy import Escalate, SupervisionPolicy
from ..launch.child_end import ChildEnd, EndKind


class State(enum.Enum):
    """State of a place."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    FAILING = "failing"
    GONE = "gone"
    GIVEN_UP = "given up"


# {event: the states in which it may come}. Spurious ones are bugs of the shell.
MOVES: dict[str, frozenset[State]] = {
    "starting": frozenset({State.WAITING}),
    "ready": frozenset({State.STARTING, State.FAILING}),
    "failing": frozenset({State.STARTING, State.READY, State.FAILING}),
    "gone": frozenset({State.STARTING, State.READY, State.FAILING}),
    # WAITING: a life that could not begin.
    "over": frozenset({State.WAITING, State.GONE}),
}


@attrs.define(eq=False)
class FleetPlace:
    """Place in a fleet, whose present life is `epoch`; 0 before the first.

    `restarts` counts the lives that were launched after the first: every count of them is this.
    `is_up` says whether the present one was READY and has not ended; `has_served` whether any was:
    from then on a refusal is an outage, not a wrong command. `why` says why the place is given up.
    One that `is_leaving` is no more when its process is gone.
    """

    name: str
    policy: SupervisionPolicy
    state: State = attrs.field(default=State.WAITING, init=False)
    epoch: int = attrs.field(default=0, init=False)
    restarts: int = attrs.field(default=0, init=False)
    due_s: float = attrs.field(default=0.0, init=False)
    is_up: bool = attrs.field(default=False, init=False)
    has_served: bool = attrs.field(default=False, init=False)
    why: str = attrs.field(default="", init=False)
    is_leaving: bool = attrs.field(default=False, init=False)

    @property
    def has_process(self) -> bool:
        """Whether there is a process that has not been seen to end."""
        return self.state in (State.STARTING, State.READY, State.FAILING)

    def begin(self, policy: SupervisionPolicy, now: float) -> None:
        """Begin, or begin anew: with nothing on its account. No process of it is left."""
        assert not self.has_process, "its process is ended first"
        assert not self.is_leaving, "it has no other life"
        self.policy, self.why = policy, ""
        self.state, self.due_s = State.WAITING, now

    def handle_leaving(self) -> None:
        """The place is to be no more, once the process that it may have is gone."""
        self.is_leaving = True

    def handle_starting(self, epoch: int) -> None:
        """A life is launched now; from here on its end is seen in any case."""
        self._check("starting")
        assert epoch > self.epoch, "epochs grow"
        self.restarts += self.epoch > 0
        self.state, self.epoch = State.STARTING, epoch
        self.policy.handle_starting(self.name, epoch)

    def handle_ready(self, now: float) -> None:
        """The process said READY; one that said before that it fails is failing still."""
        self._check("ready")
        self.is_up = self.has_served = True
        if self.state is State.STARTING:
            self.state = State.READY
        self.policy.handle_ready(self.name, now)

    def handle_failing(self) -> None:
        """The process hangs, says that it fails, or has ended."""
        self._check("failing")
        self.state = State.FAILING

    def handle_excused(self, epoch: int) -> None:
        """A request ended this life, of whichever place: it counts toward nothing."""
        self.policy.handle_excused(epoch)

    def handle_gone(self, end: ChildEnd) -> ChildEnd:
        """The end of the process was seen. Returns the end, with a request to blame if one is."""
        self._check("gone")
        self.state, self.is_up = State.GONE, False
        if end.is_own_fault and self.policy.is_excused(self.name):
            return attrs.evolve(end, kind=EndKind.REQUEST)
        return end

    def handle_over(self, end: ChildEnd, now: float) -> None:
        """The life is over, with all its processes, unless `end` says that some cannot be ended.

        The next one is due at `due_s`, or the place is given up.
        """
        self._check("over")
        decision = self.policy.handle_exit(self.name, now, end.death)
        if isinstance(decision, Escalate):
            self.state, self.why = State.GIVEN_UP, end.reason
        else:
            self.state, self.due_s = State.WAITING, decision.at

    def _check(self, event: str) -> None:
        assert self.state in MOVES[event], f"{self.name} is {self.state.value}: {event}?"

    def check_invariants(self) -> None:
        """Asserts what must hold after every event."""
        assert not self.is_up or self.state in (State.READY, State.FAILING)
        assert self.state is not State.READY or self.is_up
        assert self.has_served or not self.is_up
        assert bool(self.why) == (self.state is State.GIVEN_UP)
        assert self.epoch > 0 or self.state in (State.WAITING, State.GIVEN_UP)
        self.policy.check_invariants()
