"""Placements: what a placer has a Ray cluster do, so that the wanted hosts are there.

Sans-IO: what is wanted, and what Ray and its actors say, in; orders and reports out. `placer`
carries them out. Nothing here is remembered beyond a placer's life: the next one finds the actors
of its run by their names, keeps those that are wanted, and ends the others.

    state         means                                             left by
    BEGUN         ordered, or found; it has answered nothing yet    alive, over, not wanted
    ALIVE         its actor answers, its host runs                  unreachable, over, not wanted
    UNREACHABLE   Ray says so; the host may serve on                alive, over, not wanted
    STOPPING      told to end its host                              over; killed in a while

Actors of other runs are left alone: they are another server's, or end by themselves, as their hosts
do when their head is gone.
"""

import enum
from collections.abc import Iterable

import attrs

from .messages import HostEnded, PlacementNews, WantedHost

# For what a host does at the end of its stdin: its streams go on elsewhere, its engines end.
STOP_S = 5.0
# A cluster that has room answers within some seconds; Ray starts a process, which loads Python.
SHORT_S = 10.0


class PlacedState(enum.Enum):
    """State of a placement."""

    BEGUN = "begun"
    ALIVE = "alive"
    UNREACHABLE = "unreachable"
    STOPPING = "stopping"


@attrs.frozen
class HostAlive:
    """Answer of an actor: its host runs."""


@attrs.frozen
class HostOver:
    """Answer of an actor that its host has ended, if `is_certain`; else Ray says that it died."""

    cause: str
    is_certain: bool


@attrs.frozen
class OutOfReach:
    """Ray cannot reach the actor now; whether it lives is not known."""

    cause: str


ActorAnswer = HostAlive | HostOver | OutOfReach


@attrs.frozen
class StartHost:
    """Have the actor of this name start this host; make the actor, if there is none."""

    actor: str
    host: WantedHost


@attrs.frozen
class StopHost:
    """Have an actor end its host in order, and itself."""

    actor: str


@attrs.frozen
class KillActor:
    """Have Ray end an actor, whatever it does."""

    actor: str


PlacerOrder = StartHost | StopHost | KillActor
PlacerReport = HostEnded | PlacementNews


@attrs.define
class PlacedActor:
    """Actor of a placement, and since when it has its state.

    `is_noted`: people know that there is no room for it.
    """

    state: PlacedState
    since: float
    is_noted: bool = False


@attrs.define(eq=False)
class Placements:
    """Placements of the hosts of one run."""

    run_id: str
    # {actor: host}, as of the newest snapshot.
    wanted: dict[str, WantedHost] = attrs.field(factory=dict, init=False)
    # {actor: what is known of it}, of all that Ray has for this run.
    placed: dict[str, PlacedActor] = attrs.field(factory=dict, init=False)
    # Wanted ones that were there and are over: they never come again under this name.
    _over: set[str] = attrs.field(factory=set, init=False)

    def actor_of(self, host: WantedHost) -> str:
        """Name of a placement's actor."""
        return f"{self._prefix}{host.name}-{host.life}"

    @property
    def _prefix(self) -> str:
        return f"triolet-{self.run_id}-"

    def handle_wanted(self, hosts: Iterable[WantedHost]) -> None:
        """A snapshot of what is wanted."""
        self.wanted = {self.actor_of(host): host for host in hosts}
        self._over &= self.wanted.keys()

    def handle_listed(self, actors: Iterable[str], now: float) -> list[PlacerOrder]:
        """Ray has these actors, at the begin; those of this run that are wanted go on."""
        found = [actor for actor in actors if actor.startswith(self._prefix)]
        for actor in found:
            self.placed[actor] = PlacedActor(PlacedState.BEGUN, now)
        # One whose placer died before its host was started starts it now; the others do not mind.
        return [StartHost(actor, self.wanted[actor]) for actor in found if actor in self.wanted]

    def next_orders(self, now: float) -> list[PlacerOrder]:
        """What is to be done now, to be carried out at once and in this order."""
        orders: list[PlacerOrder] = []
        for actor, placement in self.placed.items():
            if placement.state is PlacedState.STOPPING:
                if now - placement.since >= STOP_S:
                    placement.since = now
                    orders.append(KillActor(actor))
            elif actor not in self.wanted:
                placement.state, placement.since = PlacedState.STOPPING, now
                orders.append(StopHost(actor))
        for actor, host in self.wanted.items():
            if actor not in self.placed and actor not in self._over:
                self.placed[actor] = PlacedActor(PlacedState.BEGUN, now)
                orders.append(StartHost(actor, host))
        return orders

    def handle_answer(self, actor: str, answer: ActorAnswer, now: float) -> list[PlacerReport]:
        """An actor answered, or Ray for it; late answers are of no use."""
        placement, host = self.placed.get(actor), self.wanted.get(actor)
        if placement is None:
            return []
        if isinstance(answer, HostOver):
            del self.placed[actor]
            self._over |= {actor} & self.wanted.keys()
            if host is None:
                return []
            return [HostEnded(host.name, host.life, answer.cause, answer.is_certain)]
        if placement.state is PlacedState.STOPPING or host is None:
            return []
        before, is_alive = placement.state, isinstance(answer, HostAlive)
        placement.state = PlacedState.ALIVE if is_alive else PlacedState.UNREACHABLE
        if placement.state is before:
            return []
        placement.since = now
        if isinstance(answer, OutOfReach):
            text = f"Ray cannot reach its actor: {answer.cause}"
            return [PlacementNews(host.name, text, is_out_of_reach=True)]
        if before is PlacedState.UNREACHABLE:
            return [PlacementNews(host.name, "Ray reaches its actor again", is_warning=False)]
        return []

    def handle_timeout(self, now: float) -> list[PlacerReport]:
        """Time has passed: say what has had no place for long."""
        reports: list[PlacerReport] = []
        for actor, placement in self.placed.items():
            host = self.wanted.get(actor)
            is_late = placement.state is PlacedState.BEGUN and now - placement.since >= SHORT_S
            if is_late and not placement.is_noted and host is not None:
                placement.is_noted = True
                reports.append(
                    PlacementNews(host.name, f"has no room in the cluster for {SHORT_S:g} s")
                )
        return reports

    def check_invariants(self) -> None:
        """Asserts what must hold after every event."""
        assert self._over <= self.wanted.keys()
        assert not self._over & self.placed.keys()
        assert all(actor.startswith(self._prefix) for actor in self.placed)
