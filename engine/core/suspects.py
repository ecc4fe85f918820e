"""Suspects: the requests of this engine that run alone until they are past where an engine died.

Sans-IO: `scheduler` gives them steps of their own; the shell tells the root who has passed, so that
what is sent again of the same content need not run alone, here or elsewhere.

One at a time, and not by halves, which would take fewer rounds: a culprit among n ends two engines.
By halves it ends up to log2(n) + 1, and each death costs everybody a start and, as nothing cached
is trusted after it, the recomputation of n prompts. Without a culprit halves save about n steps
of one row; what is recomputed is as much in company (24 prompts of 100 tokens, 150 million
parameters, two cores: 8.2 s alone, 7.5 in halves).
"""

from collections.abc import Sequence

import attrs

from .request import Request
from .step_builder import ScheduledStep


@attrs.define(eq=False)
class Suspects:
    """Live requests with `solo_tokens`, by content; most engines never have any."""

    # No content is listed without requests.
    _requests: dict[bytes, set[Request]] = attrs.field(factory=dict, init=False)
    # {content: how many tokens of it were computed alone}, not told yet; one more with each step.
    _passed: dict[bytes, int] = attrs.field(factory=dict, init=False)

    def __bool__(self) -> bool:
        return bool(self._requests)

    def add(self, request: Request) -> None:
        """Add a request that may be a suspect."""
        if request.is_solo:
            self._requests.setdefault(request.content, set()).add(request)

    def remove(self, request: Request) -> None:
        """Remove a request that has ended. A step in flight stays its own: that may end us yet."""
        if request.is_solo:
            requests = self._requests[request.content]
            requests.remove(request)
            if not requests:
                del self._requests[request.content]

    def next(self, runnable: list[Request], first: Request | None) -> Request | None:
        """The next that has to run alone: the first of those that run, or the first that waits."""
        solo = next((request for request in runnable if request.is_solo), None)
        return first if solo is None and first is not None and first.is_solo else solo

    def handle_computed(self, request: Request) -> None:
        """A step is complete, of which this is the first. A suspect was alone in it: once past its
        position, those of the same content are with it.
        """
        position, content = request.computed_tokens, request.content
        if not request.is_solo or position < request.solo_tokens:
            return
        self._passed[content] = max(position, self._passed.get(content, 0))
        if form := request.form_content:
            self._passed[form] = max(position, self._passed.get(form, 0))
        suspected = self._requests.pop(content, set())
        left = {each for each in suspected if each.solo_tokens > position}
        for other in suspected - left:
            other.solo_tokens = 0
        if left:
            self._requests[content] = left

    def take_passed(self) -> dict[bytes, int]:
        """Take the suspects that have passed since the last call, and up to where."""
        passed, self._passed = self._passed, {}
        return passed

    def check_invariants(self, requests: list[Request], in_flight: Sequence[ScheduledStep]) -> None:
        """Fails an assertion unless the suspects of these live requests are listed and alone."""
        listed = {request for each in self._requests.values() for request in each}
        assert listed == {request for request in requests if request.is_solo}
        for content, suspected in self._requests.items():
            assert suspected
            assert all(request.content == content for request in suspected)
        for step in in_flight:
            solo = any(request.is_solo for request in step.requests)
            assert not solo or len(step.requests) == len(in_flight) == 1


def holds_suspect(in_flight: Sequence[ScheduledStep]) -> bool:
    """Whether a suspect computes, alone; it may have ended meanwhile."""
    return bool(in_flight) and in_flight[0].requests[0].is_solo
