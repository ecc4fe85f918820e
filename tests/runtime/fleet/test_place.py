"""Places as traces: what happens in one, and what it is at; and random walks."""

import itertools
from random import Random

import pytest

from triolet.nurseries.tasks.supervision_policy import SupervisionPolicy
from triolet.runtime.fleet.place import MOVES, FleetPlace, State
from triolet.runtime.launch.child_end import STOPPED, ChildEnd, EndKind


class Middle(Random):
    """No jitter."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def policy_of(*, have_served: bool = False) -> SupervisionPolicy:
    return SupervisionPolicy(Middle(), restart_limit=1, have_served=have_served)


# Each line: a time, what happens then, and the place afterwards.
TRACES = {
    "killed when it was ready, it starts again at once": """
        0.0 starting   starting
        2.0 ready      ready up
        9.0 killed     gone
        9.0 over       waiting until 9.0
        9.0 starting   starting
    """,
    "one that is to leave has no other life": """
        0.0 starting   starting
        2.0 ready      ready up
        5.0 leaving    ready up for the last time
        6.0 stopped    gone for the last time
        6.0 begin      refused
    """,
    "a crash waits for the delay": """
        0.0 starting   starting
        2.0 ready      ready up
        5.0 failing    failing up
        5.0 fault      gone
        5.0 over       waiting until 5.1
    """,
    "too many crashes give it up, and an order begins it anew": """
        0.0 starting   starting
        1.0 fault      gone
        1.0 over       waiting until 1.1
        1.1 starting   starting
        2.0 fault      gone
        2.0 over       given up: it crashed
        7.0 begin      waiting until 7.0
        7.0 starting   starting
        8.0 fault      gone
        8.0 over       waiting until 8.1
    """,
    "a crash that a request made counts toward nothing": """
        0.0 starting   starting
        1.0 ready      ready up
        2.0 excused    ready up
        2.0 fault      gone by a request
        2.0 over       waiting until 2.0
    """,
    "one that says in its boot that it fails is failing when it is ready": """
        0.0 starting   starting
        1.0 failing    failing
        2.0 ready      failing up
        3.0 fault      gone
    """,
    "what is refused at the start is given up at once": """
        0.0 starting   starting
        1.0 refused    gone
        1.0 over       given up: it crashed
    """,
    "what is refused before there is a process is, too": """
        0.0 no-begin   given up: it crashed
    """,
    "what is refused later is an outage": """
        0.0 starting   starting
        1.0 ready      ready up
        2.0 killed     gone
        2.0 over       waiting until 2.0
        2.0 starting   starting
        3.0 refused    gone
        3.0 over       waiting until 3.1
    """,
    "what hangs in the kernel is given up": """
        0.0 starting   starting
        1.0 ready      ready up
        2.0 stuck      gone
        2.0 over       given up: it crashed
    """,
    "stopped by an order, it begins anew": """
        0.0 starting   starting
        1.0 ready      ready up
        2.0 stopped    gone
        2.0 begin      waiting until 2.0
    """,
}


class Trace:
    """Runs a trace against one place."""

    def __init__(self) -> None:
        self.place, self.epochs = FleetPlace("engine 0", policy_of()), itertools.count(1)
        self.end = STOPPED

    def step(self, now: float, what: str) -> str:
        place = self.place
        match what:
            case "starting":
                place.handle_starting(next(self.epochs))
            case "ready":
                place.handle_ready(now)
            case "failing":
                place.handle_failing()
            case "excused":
                place.handle_excused(place.epoch)
            case "over":
                place.handle_over(self.end, now)
            case "begin":
                if place.is_leaving:
                    with pytest.raises(AssertionError, match="no other life"):
                        place.begin(place.policy, now)
                    return "refused"
                place.begin(policy_of(have_served=place.has_served), now)
            case "leaving":
                place.handle_leaving()
            case "no-begin":
                place.handle_over(_end_of(EndKind.REFUSED), now)
            case _:
                self.end = _end_of(EndKind[what.upper()])
                if place.handle_gone(self.end).kind is EndKind.REQUEST:
                    return f"{self.shown()} by a request"
        place.check_invariants()
        return self.shown()

    def shown(self) -> str:
        place = self.place
        shown = place.state.value + (" up" if place.is_up else "")
        if place.state is State.WAITING:
            shown += f" until {place.due_s:.1f}"
        shown += " for the last time" if place.is_leaving else ""
        return f"{shown}: {place.why}" if place.why else shown


def _end_of(kind: EndKind) -> ChildEnd:
    return ChildEnd(kind, "crashed", RuntimeError("it crashed"))


@pytest.mark.parametrize("name", TRACES)
def test_trace(name: str) -> None:
    trace = Trace()
    for line in TRACES[name].strip().splitlines():
        at, what, expected = line.strip().split(maxsplit=2)
        assert trace.step(float(at), what) == expected, line


@pytest.mark.parametrize("event", MOVES)
def test_what_may_not_happen_is_refused(event: str) -> None:
    for state in set(State) - MOVES[event]:
        trace = Trace()
        trace.place.state = state
        with pytest.raises(AssertionError, match=f"engine 0 is {state.value}: {event}"):
            trace.step(0.0, "killed" if event == "gone" else event)


@pytest.mark.parametrize("seed", range(50))
def test_any_life_leaves_the_invariants(seed: int) -> None:
    chance, trace, now = Random(seed), Trace(), 0.0
    for _ in range(200):
        state, now = trace.place.state, now + chance.choice([0.0, 0.1, 30.0])
        events = [event for event in MOVES if state in MOVES[event]]
        if not trace.place.has_process:
            events.append("begin")
        event = chance.choice(events)
        if event == "ready" and trace.place.is_up:
            continue
        if event == "over" and state is State.WAITING:
            event = "no-begin"
        kinds = ["killed", "fault", "unasked", "shortage", "handed_over"]
        if chance.random() < 0.2:
            trace.place.handle_excused(trace.place.epoch)
        trace.step(now, chance.choice(kinds) if event == "gone" else event)
