"""Fuzzes the restart policy against a slow and separate reading of its rules.

Invariant: never more restarts in a period than allowed, none late, none after a hopeless exit; what
is killed after it was ready costs nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from random import Random

import attrs

from ...nurseries.tasks.supervision_policy import (
    JITTER,
    Death,
    Decision,
    Escalate,
    Restart,
    SupervisionPolicy,
)
from ..fuzzer import Fuzzer, each

MakePolicy = Callable[[], SupervisionPolicy]
# The policy's own default; read here, so that a policy with another one is found out.
QUIET_S = 60.0
CHILDREN = ("engine 0", "engine 1")
WAITS_S = (0.0, 0.05, 0.5, 1.0, 5.0, 20.0, 59.9, 60.0, 200.0)


@attrs.frozen
class Ready:
    """The child serves."""

    child: str


@attrs.frozen
class Exit:
    """The child's run is over."""

    child: str
    death: Death


@attrs.frozen
class Wait:
    """Time passes."""

    seconds: float


Event = Ready | Exit | Wait


_SHARES = {
    Death.FAULT: 0.55,
    Death.KILLED: 0.29,
    Death.REQUEST: 0.05,
    Death.SHORTAGE: 0.05,
    Death.HOPELESS: 0.03,
    Death.REFUSED: 0.03,
}


def _draw_event(chance: Random) -> Event:
    """Exits in bursts, with pauses of all lengths between."""
    child = chance.choice(CHILDREN)
    match chance.choice(("ready", "exit", "exit", "wait", "wait")):
        case "ready":
            return Ready(child)
        case "wait":
            return Wait(chance.choice(WAITS_S))
        case _:
            return Exit(child, chance.choices(list(_SHARES), list(_SHARES.values()))[0])


@attrs.define(eq=False)
class _Reading:
    """The rules, read once more, for one child: all its restarts, and when it became ready."""

    restarts: list[float] = attrs.field(factory=list)
    ready_at: float | None = None
    has_been_ready: bool = False
    # Delays since the last quiet run, without knowing how the policy counts them.
    delays: list[float] = attrs.field(factory=list)


def check(events: Sequence[Event], make_policy: MakePolicy) -> Counter[str]:
    """Each decision, against all that has happened to the child."""
    policy = make_policy()
    readings: defaultdict[str, _Reading] = defaultdict(_Reading)
    reached: Counter[str] = Counter()
    now = 0.0
    for event in events:
        match event:
            case Wait(seconds=seconds):
                now += seconds
            case Ready(child=child):
                policy.handle_ready(child, now)
                readings[child].ready_at = now
                readings[child].has_been_ready = True
            case Exit():
                decision = policy.handle_exit(event.child, now, event.death)
                reached[type(decision).__name__] += 1
                reached[event.death.name] += 1
                _check_decision(policy, readings[event.child], event, decision, now=now)
                if not isinstance(decision, Restart):
                    del readings[event.child]
        policy.check_invariants()
    return reached


def _check_decision(
    policy: SupervisionPolicy, reading: _Reading, event: Exit, decision: Decision, *, now: float
) -> None:
    counted = [at for at in reading.restarts if at > now - policy.restart_period_s]
    if reading.ready_at is not None and now - reading.ready_at >= QUIET_S:
        reading.delays.clear()
    from_outside = event.death in (Death.SHORTAGE, Death.KILLED, Death.REFUSED)
    is_hopeless = event.death is Death.HOPELESS
    is_hopeless |= event.death is Death.REFUSED and not reading.has_been_ready
    counts = not (from_outside and reading.has_been_ready)
    is_blameless = event.death in (Death.KILLED, Death.REQUEST)
    if is_blameless and reading.ready_at is not None:
        assert decision == Restart(event.child, at=now), "at once, whatever was before"
    elif is_hopeless or (counts and len(counted) >= policy.restart_limit):
        assert decision == Escalate(event.child, len(counted))
    else:
        assert isinstance(decision, Restart)
        assert decision.child == event.child
        _check_delay(policy, reading, decision.at - now, now=now)
        if counts:
            reading.restarts.append(now)
    reading.ready_at = None


def _check_delay(
    policy: SupervisionPolicy, reading: _Reading, delay_s: float, *, now: float
) -> None:
    """Within the bounds; the smallest after a quiet run; failed starts never make it shorter."""
    uptime_s = -1.0 if reading.ready_at is None else now - reading.ready_at
    least, most = policy.backoff_min_s * (1 - JITTER), policy.backoff_max_s * (1 + JITTER)
    assert least - 1e-9 <= delay_s <= most + 1e-9
    if not reading.delays:
        assert delay_s <= policy.backoff_min_s * (1 + JITTER) + 1e-9, "the first is the smallest"
    elif uptime_s < policy.minimum_uptime_s:
        # Doubled, unless it is the longest already; jitter may hide a part of it.
        before = reading.delays[-1] / (1 + JITTER)
        wanted = min(2 * before, policy.backoff_max_s) * (1 - JITTER)
        assert delay_s >= wanted - 1e-9, "a failed start waits longer"
    reading.delays.append(delay_s)


def _make(policy_type: type[SupervisionPolicy], **changes: float) -> MakePolicy:
    # A restart more than the default reaches the longest delay within a period.
    settings = {"restart_limit": 6, "backoff_max_s": 1.0, **changes}
    return lambda: policy_type(Random(0), **settings)  # type: ignore[arg-type]


class _OneMore(SupervisionPolicy):
    """Planted: counts one restart less than there were."""

    def handle_exit(self, child: str, now: float, death: Death = Death.FAULT) -> Decision:
        record = self._record(child)
        if len(record.restarts) == self.restart_limit:
            record.restarts.popleft()
        return super().handle_exit(child, now, death)


class _Hasty(SupervisionPolicy):
    """Planted: failed starts do not lengthen the delay."""

    def _backoff_s(self, record: object) -> float:
        return self.backoff_min_s


class _Hopeful(SupervisionPolicy):
    """Planted: a hopeless exit counts as any other."""

    def handle_exit(self, child: str, now: float, death: Death = Death.FAULT) -> Decision:
        return super().handle_exit(child, now, Death.FAULT if death is Death.HOPELESS else death)


class _Counting(SupervisionPolicy):
    """Planted: a kill counts as any other death."""

    def handle_exit(self, child: str, now: float, death: Death = Death.FAULT) -> Decision:
        return super().handle_exit(child, now, Death.FAULT if death is Death.KILLED else death)


class _Impatient(SupervisionPolicy):
    """Planted: a shortage counts, whatever was before."""

    def handle_exit(self, child: str, now: float, death: Death = Death.FAULT) -> Decision:
        return super().handle_exit(child, now, Death.FAULT if death is Death.SHORTAGE else death)


class _Lenient(SupervisionPolicy):
    """Planted: a kill before it was ready costs nothing either."""

    def handle_exit(self, child: str, now: float, death: Death = Death.FAULT) -> Decision:
        if death is Death.KILLED:
            self.handle_ready(child, now)
        return super().handle_exit(child, now, death)


FUZZER = Fuzzer[Event, MakePolicy](
    name="supervision",
    invariant="never more restarts in a period than allowed, each in time, none if hopeless",
    draw=each(_draw_event),
    check=check,
    target=_make(SupervisionPolicy),
    faults={
        "one restart too many": _make(_OneMore),
        "a quiet run is not rewarded": _make(SupervisionPolicy, quiet_s=1e9),
        "failed starts do not back off": _make(_Hasty),
        "a hopeless exit is followed by a restart": _make(_Hopeful),
        "a kill counts": _make(_Counting),
        "a kill in a boot costs nothing": _make(_Lenient),
        "a shortage counts": _make(_Impatient),
    },
    smoke_rounds=60,
    reaches=frozenset({"Restart", "Escalate", *(death.name for death in Death)}),
)
