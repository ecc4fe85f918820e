"""Decides which tokens wait, so that one message tells those of several steps.

A frontend that would only merge them says so with a request (`AddRequest.merge_s`): then most of
what a token costs, on both sides and on the way, is paid once for each *window* of that length.
Windows are cut from the clock, so that all of a frontend's requests that wait as long are told
together. Nothing waits that is needed at once: the first token, an end, and what brings a request
near its credit, as that is only raised for tokens that were told.

A request remembers the first token that it was not told of (`Request.untold_from`), so that a token
that waits costs nothing here. What waits is lost with the engine and comes again with the replay.

Sans-IO: times in, times out, in seconds. Must not know messages.
"""

import math

import attrs

from .request import Frontend, Request


@attrs.define(eq=False)
class _Window:
    due_s: float
    # Each once, in order: some of their tokens wait, or did before they were told or ended.
    requests: dict[Request, None] = attrs.field(factory=dict)


@attrs.define(eq=False)
class OutputWindows:
    """All windows that are open: bounded by the requests that ran in the longest of them."""

    _windows: dict[tuple[Frontend, float], _Window] = attrs.field(factory=dict, init=False)

    def __bool__(self) -> bool:
        """Whether any token may wait."""
        return bool(self._windows)

    def hold(self, request: Request, index: int, now: float) -> bool:
        """Let its newest token, output `index`, wait; False if it must be told now."""
        total_tokens = request.prompt_tokens + index + 1
        if index == request.replayed_tokens or total_tokens > request.held_until:
            return False
        if request.untold_from is None:
            request.untold_from = index
            key = (request.frontend, request.merge_s)
            window = self._windows.get(key)
            if window is None:
                due_s = (math.floor(now / request.merge_s) + 1) * request.merge_s
                window = self._windows[key] = _Window(due_s)
            window.requests[request] = None
        return True

    def take_due(self, until_s: float) -> list[Request]:
        """Close the windows that end by then; those with something untold."""
        due = [key for key, window in self._windows.items() if window.due_s <= until_s]
        closed = [self._windows.pop(key) for key in due]
        return [
            request
            for window in closed
            for request in window.requests
            if request.untold_from is not None and not request.is_finished
        ]

    def drop(self, frontend: Frontend) -> None:
        """It is gone, or is told by other means."""
        for key in [key for key in self._windows if key[0] == frontend]:
            for request in self._windows.pop(key).requests:
                request.untold_from = None

    def check_invariants(self) -> None:
        """Whoever waits is in an open window."""
        for (frontend, merge_s), window in self._windows.items():
            assert merge_s > 0
            for request in window.requests:
                assert (request.frontend, request.merge_s) == (frontend, merge_s)
