"""Host process: a root of engines alone, which serve under a head on another machine.

A host dials its head for ever. What it computes with outlives its engines and each of its lives: a
host that was cut off ends its engines, joins again as another incarnation, and finds the weights in
memory, which it keeps for some minutes without a head. A life is in `host_life`.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import attrs
import trio

from ...nurseries.processes.kernel import KERNEL, Kernel
from ...nurseries.tasks.background import start_background_task_soon, waiting_for
from ...nurseries.tasks.service import single_errors_unwrapped
from ..continuity.estate import EngineEstate, Estate
from ..events import HostLost, HostSaid, OnEvent
from ..launch.child import PlaceEvent
from .host_life import HostLife
from .host_plan import HostPlan, boottime_s

# Time between two lives: for a head to see that the one before is over; longer after one that was
# short, as the next will be.
REST_S, LONG_REST_S = 0.2, 1.0
SHORT_LIFE_S = 5.0


@attrs.define(eq=False)
class KeptEstate:
    """Estate that outlives fleets, whose ranks begin elsewhere each time."""

    estate: Estate
    first_rank: int

    @contextmanager
    def open(self, count: int) -> Iterator[None]:
        """It is open."""
        yield

    def handle_starting(self, rank: int, epoch: int) -> Mapping[str, int]:
        """Descriptors of the place, whatever its rank is this time."""
        return self.estate.handle_starting(rank - self.first_rank, epoch)

    def handle(self, rank: int, event: PlaceEvent) -> None:
        """Something happened in the place."""
        self.estate.handle(rank - self.first_rank, event)


@attrs.define(eq=False)
class Host:
    """Host of a run. `run` is cancelled to stop it; `leave` drains first."""

    plan: HostPlan
    on_event: OnEvent
    kernel: Kernel = KERNEL
    # Draws the numbers under which it dials, and spreads delays.
    chance: random.Random = attrs.field(factory=random.Random)
    now_s: Callable[[], float] = boottime_s
    _nursery: trio.Nursery = attrs.field(init=False)
    # No life begins any more.
    is_leaving: bool = attrs.field(default=False, init=False)
    # When the last life ended that was let in.
    _alone_since_s: float = attrs.field(default=0.0, init=False)
    # The life that runs; None between two.
    life: HostLife | None = attrs.field(default=None, init=False)

    async def run(self) -> None:
        """Serve under whichever head lets this host in, until cancelled; or until none does so for
        the plan's `patience_s`, or one has drained it.

        Raises `JoinRefusedByHead` for what only people can mend, `BootRefused` and `NoEngineLeft`
        as a fleet does. Cancellation: every process is stopped and reaped.
        """
        with single_errors_unwrapped():
            async with trio.open_nursery() as self._nursery:
                await self._live_under(itertools.cycle(self.plan.heads))
                self._nursery.cancel_scope.cancel("no head let it in")

    async def _live_under(self, heads: Iterator[str]) -> None:
        self._alone_since_s = trio.current_time()
        while self._alone_s < self.plan.patience_s:
            estate = EngineEstate()
            with estate.open(self.plan.engines):
                await self._live_on(heads, estate)

    def _begin_drain(self) -> None:
        """Its head wants it to drain and end; once."""
        if not self.is_leaving:
            self.is_leaving = True
            start_background_task_soon(self._nursery, self._drain, name="drain")

    async def _drain(self) -> None:
        await self.leave()
        self._nursery.cancel_scope.cancel("drained")

    @property
    def _alone_s(self) -> float:
        return trio.current_time() - self._alone_since_s

    async def _live_on(self, heads: Iterator[str], estate: Estate) -> None:
        """Have one life after the other with this memory, until it is not worth keeping."""
        is_used = False
        while True:
            began_s = trio.current_time()
            cause, was_in = await self._live(next(heads), estate)
            if cause:
                self.on_event(HostLost(self.plan.name, cause))
            if self.is_leaving:
                with waiting_for("its end"):
                    await trio.sleep_forever()
            if was_in:
                is_used, self._alone_since_s = True, trio.current_time()
            elif self._alone_s >= self.plan.patience_s:
                return
            elif is_used and self._alone_s >= self.plan.keep_s:
                text = f"gives back its engines' memory: no head for {self.plan.keep_s:g} s"
                self.on_event(HostSaid(self.plan.name, text, is_warning=False))
                return
            was_short = trio.current_time() - began_s <= SHORT_LIFE_S
            with waiting_for("the time to dial again"):
                await trio.sleep(LONG_REST_S if was_short else REST_S)

    async def _live(self, head: str, estate: Estate) -> tuple[str, bool]:
        """Why a life is over, and whether it was let in."""
        incarnation = self.chance.randrange(1, 2**32)
        self.life = life = HostLife(
            plan=self.plan,
            head=head,
            incarnation=incarnation,
            keep=lambda first_rank: KeptEstate(estate, first_rank),
            on_event=self.on_event,
            kernel=self.kernel,
            chance=self.chance,
            now_s=self.now_s,
            on_drain=self._begin_drain,
        )
        try:
            return await life.run(), life.lease is not None
        finally:
            life.is_over, self.life = True, None

    def to_reap(self) -> set[int]:
        """The processes that were spawned here and are not reaped yet, by number."""
        fleet = None if self.life is None else self.life.fleet
        return set() if fleet is None else fleet.processes.to_reap()

    async def leave(self) -> None:
        """Have all streams end here or go on elsewhere, before `run` is cancelled."""
        self.is_leaving = True
        if self.life is not None:
            await self.life.leave()
