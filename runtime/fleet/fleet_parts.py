"""Parts that all fleets of one run share: settings, epochs, readiness, chance, and the kernel."""

import itertools
import random
from collections.abc import Iterator

import attrs

from ...nurseries.processes.kernel import KERNEL, Kernel
from ...nurseries.processes.spares import Readiness
from ...nurseries.tasks.supervision_policy import SupervisionPolicy
from ..config import RuntimeSettings
from ..events import OnEvent
from ..launch.child import ChildTimes, Launch
from ..launch.local_child import LocalChild


@attrs.frozen
class FleetParts:
    """Parts that all fleets of one run share.

    `epochs` number the lives of all their processes, and only grow; `chance` spreads the delays of
    restarts; spares wait until all processes of the run are ready.
    """

    settings: RuntimeSettings
    on_event: OnEvent
    run_id: str = ""
    epochs: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))
    readiness: Readiness = attrs.field(factory=Readiness)
    kernel: Kernel = KERNEL
    chance: random.Random = attrs.field(factory=random.Random)
    launch: Launch = LocalChild

    def policy(self, *, have_served: bool, gives_up_served: bool) -> SupervisionPolicy:
        """The policy of a place that is begun."""
        return self.settings.supervision.policy(
            self.chance, have_served=have_served, gives_up_served=gives_up_served
        )

    @property
    def times(self) -> ChildTimes:
        """The times of every child."""
        engine = self.settings.engine
        return ChildTimes(engine.boot_timeout_s, self.settings.times.ladder, engine.step_timeout_s)
