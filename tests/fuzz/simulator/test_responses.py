"""What simulated frontends forget: ends that clients have seen, and deaths in the midst of it."""

import pytest

from triolet.fuzz.simulator.bugs import BUGS
from triolet.fuzz.simulator.plan import Event, Fault, FaultKind, Request, Setup
from triolet.fuzz.simulator.responses import KEPT_S, Forgotten
from triolet.fuzz.simulator.simulation import simulate
from triolet.fuzz.simulator.streams import Violation

# Its client lets it wait behind its second token, and comes back when its time is over; one life
# later it is in time.
LATE = Request(
    name="late",
    at_s=0.0,
    frontend=0,
    prompt=[9, 8],
    seed=3,
    max_tokens=6,
    grants=1,
    pause_s=KEPT_S,
    back_after_s=KEPT_S + 0.5,
)
# Stores of an adopter: five while it adopts one stream, then two of its abort, two of its deletion
# and one that nothing is rebuilt.
ADOPTION, ABORTED, DELETED, STORES = 5, 7, 9, 10


@pytest.mark.parametrize("steps", range(STORES + 1))
def test_who_dies_while_it_forgets_a_stream_has_forgotten_it_or_not(steps: int) -> None:
    kill = Fault(kind=FaultKind.KILL_ADOPTER, at_s=0.0, tokens=1, steps=steps)
    reached = simulate([Setup(engines=1), LATE, kill]).reached
    assert reached["adopter killed"] == (steps < STORES)
    has_begun = steps >= ADOPTION
    assert reached["adopted"] == 1 + (has_begun and steps < DELETED)
    if ADOPTION <= steps < ABORTED:
        assert reached["stream finished"] == 1  # nothing that counts was stored
    elif has_begun:
        assert reached["stream gone"] == 1


def test_what_a_life_does_not_find_of_what_was_begun_was_forgotten() -> None:
    forgotten = Forgotten()
    forgotten.begun |= {"there": 0, "absent": 0, "elsewhere": 1}
    forgotten.handle_adopted(0, {"there"})
    assert forgotten.names == {"absent"}
    assert forgotten.begun == {"there": 0, "elsewhere": 1}
    forgotten.end("there")
    assert forgotten.names == {"absent", "there"}
    assert forgotten.begun == {"elsewhere": 1}


def gap(replay_wait_s: float) -> list[Event]:
    """It comes while there is no engine, and its frontend is killed long after."""
    return [
        Setup(engines=1, replay_wait_s=replay_wait_s),
        Request(name="early", at_s=0.3, frontend=0, prompt=[9, 8], seed=3, max_tokens=6),
        Fault(kind=FaultKind.KILL_ENGINE, at_s=0.0),
        Fault(kind=FaultKind.KILL_FRONTEND, at_s=3.0),
    ]


def test_a_stream_that_has_waited_in_vain_is_over_and_forgotten() -> None:
    reached = simulate(gap(0.05)).reached
    assert reached["stream unserved"] == reached["stream finished"] == 1
    assert reached["adopted"] == 1  # the one that finished


def test_a_stream_that_has_not_waited_for_its_first_engine_is_a_violation() -> None:
    assert simulate(gap(30.0)).reached["stream finished"] == 1
    with pytest.raises(Violation, match="did not wait for an engine"):
        simulate(gap(30.0), BUGS["a stream waits for no engine"])
