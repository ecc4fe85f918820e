"""What must not be in a run's log, or last. The campaign itself runs in `tests/chaos`."""

import attrs
import trio.testing

from triolet.fuzz.chaos.campaign import QUIET_S, log_violations, settled
from triolet.fuzz.chaos.checkers import Look, QuietLook, judge_free
from triolet.runtime.processes.control_server import ControlCallFailed


def test_what_must_not_be_in_the_log() -> None:
    assert log_violations("engine 0: was killed by SIGKILL\nengine 0: ready") == []
    found = log_violations("engine 0: given up: it died too often\nTraceback (most recent")
    assert [violation.invariant for violation in found] == ["I10", "I10"]


ENGINE = Look(pid=1, epoch=1, fds=9, memfds=1, rss_bytes=1, facts={"kv blocks": "7 of 8 free"})
HELD = QuietLook(
    places={"engine 0": ENGINE},
    pids=frozenset({1}),
    zombies=(),
    abstract_sockets=0,
    shared_memory=(),
    connections=0,
)


@attrs.define
class Looks:
    """Gives these one after the other, and the last one for ever; None is no answer."""

    looks: list[QuietLook | None]

    async def __call__(self) -> QuietLook:
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if look is None:
            raise ControlCallFailed("no answer")
        return look


async def test_what_never_gets_free_is_a_violation_and_no_wait_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with trio.fail_after(QUIET_S + 1):
        (found,) = await settled(Looks([HELD]), judge_free, QUIET_S)
        assert (found.invariant, "7 of 8" in found.evidence) == ("I4", True)
        (found,) = await settled(Looks([None]), judge_free, 0.5)
        assert found.invariant == "I8"


async def test_what_gets_free_in_time_is_none(autojump_clock: trio.testing.MockClock) -> None:
    free = attrs.evolve(ENGINE, facts={"kv blocks": "8 of 8 free", "running": 0})
    looks = Looks([HELD, None, HELD, attrs.evolve(HELD, places={"engine 0": free})])
    assert await settled(looks, judge_free, QUIET_S) == []
