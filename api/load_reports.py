"""Reports of load: how busy a frontend is, for the root, which balances connections by that."""

from collections.abc import Awaitable, Callable

import attrs
import trio

from ..nurseries.tasks.background import waiting_for
from ..nurseries.tasks.changes import Changes
from ..nurseries.tasks.parking import Doorbell
from ..runtime.messages import FrontendLoad

# The root balances by these reports; between two of them it counts what it passed itself.
LOAD_PERIOD_S = 0.02


@attrs.define(eq=False)
class LoadReports:
    """Reports to the root how busy this frontend is: on change and never otherwise.

    `look` takes the counts of this moment, `send` takes a report to the root. A burst of changes is
    one report, so an idle frontend sleeps.
    """

    look: Callable[[], FrontendLoad]
    send: Callable[[FrontendLoad], Awaitable[None]]
    period_s: float = LOAD_PERIOD_S
    _changed: Doorbell = attrs.field(factory=Doorbell, init=False)

    def changed(self) -> None:
        """A count may have changed. Cheap, and harmless when none has."""
        self._changed.ring()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `load-reports`; never returns unless cancelled. Raises what `send` does.

        The first report is sent at once, then at most one in `period_s`.
        """
        task_status.started()
        sent: FrontendLoad | None = None
        while True:
            load = self.look()
            if load.ended or load.passed or load != sent:
                await self.send(load)
                sent = load
                await trio.sleep(self.period_s)
            with waiting_for("changes of the load"):
                await self._changed.wait()

    async def watch(
        self,
        changes: Changes,
        what: str,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Background task: report whenever there are `changes`, and at once."""
        task_status.started()
        while True:
            self.changed()
            with waiting_for(f"changes of {what}"):
                await changes.wait()
