"""Orders about places by role and rank: whose ranks begin anywhere, and who is asked in vain."""

import attrs
import pytest

from triolet.runtime.control.calls import (
    EngineState,
    Place,
    RestartedPlace,
    Role,
    Signal,
    SignalOrder,
)
from triolet.runtime.errors import ControlCallRefused
from triolet.runtime.events import ChildGone, ChildReady
from triolet.runtime.fleet.fleet_orders import FleetOrders

from ..acting import EngineBed, acting_settings, running


async def test_places_whose_ranks_begin_anywhere_are_ordered_by_rank() -> None:
    settings = acting_settings(*[["ready", "ready"]] * 6)
    bed = EngineBed(attrs.evolve(settings, engines=2), first_rank=4)
    engines = bed.fleet.processes
    orders = FleetOrders({engines: bed.fleet.restart})
    async with running(bed.fleet):
        await bed.diary.wait_for(ChildReady, 2)
        assert bed.fleet.directory.ranks() == {4, 5}
        with pytest.raises(ControlCallRefused, match=r"no engine 0: .* has engine 4 to 5$"):
            orders.restart(Place(Role.ENGINE, 0))
        with pytest.raises(ControlCallRefused, match=r"no frontend 0: .* has none$"):
            orders.restart(Place(Role.FRONTEND, 0))
        with pytest.raises(ControlCallRefused, match="nothing was given up"):
            orders.restart(None)
        place = Place(Role.ENGINE, 5)
        assert orders.restart(place) == [RestartedPlace(place, EngineState.READY)]
        await bed.diary.wait_for(ChildReady, 3)
        order = orders.signal(SignalOrder("engine 4", Signal.KILL))
        assert order.pid == engines.ready[4].row()["pid"]
        assert (await bed.diary.wait_for(ChildGone)).child == "engine 4"
        await bed.diary.wait_for(ChildReady, 4)
        assert [tree.name for tree in await orders.trees()] == ["engine 4", "engine 5"]
        assert orders.failed() == {}
        assert len(orders.to_reap()) == 2
