"""Every place begins anew, each when the one before is back, and none behind one that is not."""

import math
from collections.abc import Callable

import attrs
import msgspec
import pytest
import trio
import trio.testing

from triolet.api.commands.running import LOOK_S, NotBack, restart_rolling
from triolet.runtime.control.calls import (
    ControlCall,
    EngineState,
    Place,
    PlaceState,
    Role,
    ServerPlaces,
)

ENGINES = [Place(Role.ENGINE, rank) for rank in (0, 1)]
FRONTEND = Place(Role.FRONTEND, 0)
PLACES = [*ENGINES, FRONTEND]
# What a restart takes here: the old process, the new one, the links.
STOP_S, BOOT_S, LINK_S = 1.0, 3.0, 2.0
RESTART_S = 60.0


@attrs.define(eq=False)
class FakeRoot:
    """Places by the clock. `failed` are given up at first, `ends` says what becomes of others."""

    failed: tuple[Place, ...] = ()
    ends: dict[Place, EngineState] = attrs.field(factory=dict)
    ordered_at: dict[Place, float] = attrs.field(factory=dict)

    async def answer(self, call: ControlCall, place: Place | None) -> str:
        await trio.lowlevel.checkpoint()
        if call is ControlCall.PLACES:
            return msgspec.json.encode(self.places()).decode()
        assert call is ControlCall.RESTART
        assert place is not None
        self.ordered_at[place] = trio.current_time()
        return ""

    def places(self) -> ServerPlaces:
        linked_at = [at + STOP_S + BOOT_S + LINK_S for at in self.ordered_at.values()]
        is_linked = trio.current_time() >= max(linked_at, default=0)
        return ServerPlaces([self.state_of(place) for place in PLACES], is_linked, RESTART_S)

    def state_of(self, place: Place) -> PlaceState:
        since_s = trio.current_time() - self.ordered_at.get(place, math.inf)
        if since_s < 0 and place in self.failed:
            return PlaceState(place, EngineState.FAILED, 0, "died before")
        if since_s < STOP_S and place not in self.failed:
            return PlaceState(place, EngineState.READY, 1)
        if since_s < STOP_S + BOOT_S:
            return PlaceState(place, EngineState.STARTING, 2)
        end = self.ends.get(place, EngineState.READY)
        return PlaceState(place, end, 2, "it died too often")


async def rolled(root: FakeRoot) -> list[str]:
    lines: list[str] = []
    say: Callable[[str], None] = lines.append
    await restart_rolling(root.answer, say)
    return lines


async def test_the_next_follows_when_one_is_ready_and_linked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    root = FakeRoot()
    lines = await rolled(root)
    assert list(root.ordered_at) == PLACES
    takes_s = STOP_S + BOOT_S + LINK_S
    times = list(root.ordered_at.values())
    assert times == pytest.approx([0, takes_s, 2 * takes_s], abs=3 * LOOK_S)
    assert [line.split(" after ")[0] for line in lines] == [
        f"{place} {what}" for place in PLACES for what in ("is restarted", "is ready")
    ]


@pytest.mark.parametrize(
    ("end", "reason", "after_s"),
    [
        (EngineState.FAILED, "it died too often", STOP_S + BOOT_S),
        (EngineState.STARTING, "not ready, and linked to the others, within 60 s", RESTART_S),
    ],
)
async def test_behind_one_that_does_not_come_back_none_is_restarted(
    end: EngineState, reason: str, after_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    root = FakeRoot(ends={ENGINES[1]: end})
    with pytest.raises(NotBack, match=reason) as caught:
        await rolled(root)
    assert caught.value.place == ENGINES[1]
    assert list(root.ordered_at) == ENGINES
    waited_s = trio.current_time() - root.ordered_at[ENGINES[1]]
    assert waited_s == pytest.approx(after_s, abs=2 * LOOK_S)


async def test_one_that_was_given_up_begins_anew_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    root = FakeRoot(failed=(ENGINES[0],))
    await rolled(root)
    assert list(root.ordered_at) == PLACES


async def test_cancelled_it_orders_nothing_more(autojump_clock: trio.testing.MockClock) -> None:
    root = FakeRoot()
    with trio.move_on_after(STOP_S + BOOT_S):
        await rolled(root)
    await trio.sleep(RESTART_S)
    assert list(root.ordered_at) == ENGINES[:1]
