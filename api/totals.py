"""Totals: what all frontends of a server have counted, as each of them shows it.

Every frontend copies its counters into memory that all map and that outlives it, and shows the sum
of what is there. So all show the same, the next life of a frontend goes on from where the last one
was, and nothing that was ever shown goes backwards. A frontend that is killed takes along what it
counted since the last copy: at most `PERIOD_S`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from ..nurseries.processes.counter_page import CounterPage, open_counter_page
from ..nurseries.processes.counter_slot import Name
from ..nurseries.tasks.background import waiting_for
from ..nurseries.tasks.changes import Changes
from ..nurseries.tasks.service import open_service
from ..runtime.frontend.generation import Generator
from ..runtime.frontend.health import FrontendStatistics
from .counters import LAYOUT, ApiCounters, FrontendCounts, counts_of, numbers_of

# Between two copies. Pulled out of the air: what monitors miss by it is far below their own period.
PERIOD_S = 0.25


@attrs.define(eq=False)
class Totals:
    """The counters of this frontend, and the sum over all; without a page it is the only one."""

    generator: Generator
    counters: ApiCounters
    # Notified when a count may have changed.
    changes: Changes = attrs.field(factory=Changes)
    _page: CounterPage | None = attrs.field(default=None, init=False)

    def is_first(self) -> bool:
        """Whether this is the one frontend of all that says what is said once."""
        return self._page is None or self._page.is_first

    def look(self, own: FrontendStatistics | None = None) -> FrontendCounts:
        """The sum over all frontends, with our counts of this moment (`own`, if they are known)."""
        numbers = self._numbers(own)
        if self._page is None:
            return counts_of(numbers)
        self._page.publish(numbers)
        return counts_of(self._page.total())

    def _numbers(self, own: FrontendStatistics | None = None) -> dict[Name, int]:
        runtime = own or self.generator.statistics().frontend
        return numbers_of(FrontendCounts(edge=self.counters, runtime=runtime))

    @asynccontextmanager
    async def open_page(self, fd: int | None, rank: int) -> AsyncIterator[None]:
        """Count in this page for the body of the block; without one, alone.

        Raises `OSError` or `ValueError` for a descriptor that is no page with this rank, and
        `ServiceEnded` if the task that copies ends. The descriptor stays the caller's.
        """
        if fd is None:
            yield
            return
        with open_counter_page(fd, rank, LAYOUT, self._numbers()) as self._page:
            try:
                async with open_service(self._run, self._page, name="counters"):
                    yield
            finally:
                self._page.publish(self._numbers())
                self._page = None

    async def _run(self, page: CounterPage, *, task_status: trio.TaskStatus[None]) -> None:
        """Background task `counters`: copies what is new; never returns unless cancelled.

        Every `PERIOD_S` while requests are in flight or counts change; it sleeps when idle.
        """
        task_status.started()
        while True:
            change, numbers = self.changes.next, self._numbers()
            is_new = page.publish(numbers)
            if is_new or counts_of(numbers).runtime.requests_active:
                await trio.sleep(PERIOD_S)
                continue
            with waiting_for("changes of the counters"):
                await change.wait()
