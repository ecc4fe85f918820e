"""Gathers what frontends are told although no step brings it: refusals, early ends, events.

Sans-IO: plain lists. The engine core puts in, its shell takes between steps. Must not know steps.
"""

import attrs

from ..messages import RequestEvent, RequestEventKind, RequestOutput
from .request import WAITING, Frontend, Request
from .scheduler import Scheduler
from .statistics import News


@attrs.define(eq=False)
class Announcements:
    """Bounded by one output for each ADD between steps and two events of each request in a step."""

    _news: dict[Frontend, News] = attrs.field(factory=dict, init=False)
    # Came since the last `put_events` and want events; bounded by what came.
    _came: list[Request] = attrs.field(factory=list, init=False)

    def put(self, frontend: Frontend, output: RequestOutput) -> None:
        """One output for this frontend."""
        self._news.setdefault(frontend, News()).outputs.append(output)

    def note_arrival(self, request: Request) -> None:
        """It wants events: if it must wait it is told so by the next `put_events`."""
        self._came.append(request)

    def put_events(self, scheduler: Scheduler) -> None:
        """Who came since the last time and must wait is told so, then what was scheduled."""
        for request in self._came:
            if request.status in WAITING:
                position = scheduler.waiting.position(request)
                self._put_event(request, RequestEventKind.QUEUED, position)
        self._came.clear()
        for request, kind in scheduler.take_events():
            self._put_event(request, kind)

    def take(self) -> dict[Frontend, News]:
        """All there is, once."""
        if not self._news:
            return {}
        news, self._news = self._news, {}
        return news

    def drop(self, frontend: Frontend) -> None:
        """It is gone, or is told by other means."""
        self._news.pop(frontend, None)

    def _put_event(self, request: Request, kind: RequestEventKind, detail: int = 0) -> None:
        if request.untold_from is not None:  # they came before it
            self.put(request.frontend, request.output_from(request.take_untold(0)))
        output = RequestOutput(
            request_id=request.request_id,
            attempt=request.attempt,
            first_index=request.output_count,
            token_ids=[],
            events=(RequestEvent(kind, detail),),
        )
        self.put(request.frontend, output)
