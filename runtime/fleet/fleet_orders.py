"""Orders about the places of a root, and what it shows of them: restart, signal, tree.

A place is named as people do, by role and rank; whose place it is, and what beginning it anew means
there, the fleets know.
"""

from collections.abc import Callable, Mapping

import attrs
import trio

from ...nurseries.tasks.background import start_background_task_soon
from ...nurseries.tasks.task_tree import ProcessTree
from ..control.calls import Place, RestartedPlace, Role, SignalOrder
from ..errors import ControlCallRefused
from ..launch.signals import SignalTarget, send_signal
from .process_supervisor import ProcessSupervisor


@attrs.define(eq=False)
class FleetOrders:
    """Orders to the fleets of one root, each with what begins a rank of it anew."""

    restarts: Mapping[ProcessSupervisor, Callable[[int], None]]
    # Processes that are in no place, by name: the host that carries out the orders.
    others: Mapping[str, SignalTarget] = attrs.field(factory=dict)
    # {place: pid} of what was killed by an order, the last of each.
    _killed: dict[str, int] = attrs.field(factory=dict, init=False)

    @property
    def fleets(self) -> tuple[ProcessSupervisor, ...]:
        """All fleets."""
        return tuple(self.restarts)

    def to_reap(self) -> set[int]:
        """The processes that were spawned here and are not reaped yet, by number."""
        return set[int]().union(*(fleet.to_reap() for fleet in self.fleets))

    def failed(self) -> dict[str, str]:
        """Places that are given up, and why, as facts of the tree: there is no process to show."""
        return {
            f"{fleet.role} {rank}": f"failed: {why}"
            for fleet in self.fleets
            for rank, why in sorted(fleet.failed.items())
        }

    def restart(self, place: Place | None) -> list[RestartedPlace]:
        """Begin a place anew, or all that are given up. Raises `ControlCallRefused`."""
        if place is None:
            failed = [Place(Role(each.role), rank) for each in self.fleets for rank in each.failed]
            if not failed:
                raise ControlCallRefused(
                    "nothing was given up; to restart what runs, name an engine or a frontend"
                )
            return [each for place in failed for each in self.restart(place)]
        fleet = next((each for each in self.fleets if each.role == place.role), None)
        if fleet is None or place.rank not in fleet.places:
            raise ControlCallRefused(f"there is no {place}: this server has {_there(fleet)}")
        was = fleet.place(place.rank).state
        self.restarts[fleet](place.rank)
        return [RestartedPlace(place, was)]

    def signal(self, order: SignalOrder) -> SignalOrder:
        """Send a signal to a process of a place; see `signals.send_signal`."""
        targets: dict[str, SignalTarget | None] = {**self.others}
        for fleet in self.fleets:
            targets |= fleet.targets()
        return send_signal(order, targets, self._killed)

    async def trees(self) -> list[ProcessTree]:
        """Trees of all processes, spares behind the places."""
        children = [child for fleet in self.fleets for _, child in sorted(fleet.present().items())]
        trees: dict[int, ProcessTree] = {}

        async def ask(place: int) -> None:
            trees[place] = await children[place].tree()

        async with trio.open_nursery() as nursery:
            for place in range(len(children)):
                start_background_task_soon(nursery, ask, place, name="tree-request")
        spares = [tree for fleet in self.fleets for tree in fleet.spares.trees()]
        return [trees[place] for place in sorted(trees)] + spares


def _there(fleet: ProcessSupervisor | None) -> str:
    ranks = [] if fleet is None else sorted(fleet.places)
    if fleet is None or not ranks:
        return "none"
    if len(ranks) == 1:
        return f"{fleet.role} {ranks[0]} alone"
    if ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{fleet.role} {ranks[0]} to {ranks[-1]}"
    return f"{fleet.role} {', '.join(map(str, ranks))}"
