"""Knows every response of this frontend by its id: those that run, and a few that have ended.

Through it a response is cancelled from anywhere: by an HTTP call, by an event on any socket of the
same principal. Another principal's response does not exist for the caller (404, not 403). Must not
know protocols or who writes the events.
"""

from collections import OrderedDict
from collections.abc import Callable

import attrs
import msgspec
import trio

from ..runtime.generation import GenerationOutput, GenerationStream
from .errors import ApiError
from .fields import JsonObject
from .limits import ServerLimits


@attrs.define(eq=False)
class ActiveResponse:
    """One response that runs. `snapshot` tells its present state as a response object."""

    response_id: str
    principal: str
    snapshot: Callable[[], JsonObject]
    final: JsonObject | None = attrs.field(default=None, init=False)

    _cancel_reason: str | None = attrs.field(default=None, init=False)
    # Open while the task that runs the response waits for the engine, and only then: a cancel must
    # not interrupt a write, which would cost the whole connection.
    _scope: trio.CancelScope | None = attrs.field(default=None, init=False)
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False)

    def cancel(self, reason: str) -> None:
        """Ask for the end; idempotent. The response ends with status `cancelled`."""
        if self._cancel_reason is None:
            self._cancel_reason = reason
        if self._scope is not None:
            self._scope.cancel(reason)

    async def next_output(self, stream: GenerationStream) -> GenerationOutput | None:
        """The stream's next output; None when the response was cancelled. Raises what it raises."""
        if self._cancel_reason is not None:
            return None
        with trio.CancelScope() as scope:
            self._scope = scope
            try:
                return await anext(stream)
            finally:
                self._scope = None
        return None

    def end(self, final: JsonObject) -> None:
        """Note the last state and wake those who wait for it."""
        self.final = final
        self._ended.set()

    async def wait_ended(self) -> JsonObject:
        """The final response object."""
        await self._ended.wait()
        assert self.final is not None
        return self.final


@attrs.frozen
class _Finished:
    principal: str
    response: JsonObject
    size_bytes: int
    at_s: float


@attrs.define(eq=False)
class ResponseRegistry:
    """All responses by id; ended ones within the limits of count, bytes and age."""

    limits: ServerLimits

    _active: dict[str, ActiveResponse] = attrs.field(factory=dict, init=False)
    # Oldest first.
    _finished: OrderedDict[str, _Finished] = attrs.field(factory=OrderedDict, init=False)
    _finished_bytes: int = attrs.field(default=0, init=False)

    @property
    def active(self) -> int:
        """How many responses run."""
        return len(self._active)

    def add(self, response: ActiveResponse) -> None:
        """Make a response known. Ids are ours and random: a double one is a mistake of ours."""
        assert response.response_id not in self._active
        self._active[response.response_id] = response

    def end(self, response: ActiveResponse, final: JsonObject) -> None:
        """A response has ended, for whatever reason; keep it a while if it fits."""
        del self._active[response.response_id]
        response.end(final)
        now = trio.current_time()
        size = len(msgspec.json.encode(final))
        if size <= self.limits.finished_bytes_max:
            finished = _Finished(response.principal, final, size, now)
            self._finished[response.response_id] = finished
            self._finished_bytes += size
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._finished:
            oldest_id, oldest = next(iter(self._finished.items()))
            fits = (
                len(self._finished) <= self.limits.finished_responses_max
                and self._finished_bytes <= self.limits.finished_bytes_max
            )
            if fits and now < oldest.at_s + self.limits.finished_s:
                return
            del self._finished[oldest_id]
            self._finished_bytes -= oldest.size_bytes

    def get(self, response_id: str, principal: str) -> JsonObject:
        """The response object as it is now. Raises `ApiError` 404."""
        active = self._active.get(response_id)
        if active is not None and active.principal == principal:
            return active.snapshot()
        return self._get_finished(response_id, principal)

    def _get_finished(self, response_id: str, principal: str) -> JsonObject:
        self._forget(trio.current_time())
        finished = self._finished.get(response_id)
        if finished is None or finished.principal != principal:
            raise response_not_found(response_id)
        return finished.response

    def cancel(self, response_id: str, principal: str, reason: str) -> None:
        """Ask a response to end; one that has ended stays as it is. Raises `ApiError` 404."""
        active = self._active.get(response_id)
        if active is not None and active.principal == principal:
            active.cancel(reason)
        else:
            self._get_finished(response_id, principal)

    async def cancel_and_wait(self, response_id: str, principal: str, reason: str) -> JsonObject:
        """Cancel and return the final object, with the output so far. Raises `ApiError` 404."""
        active = self._active.get(response_id)
        if active is None or active.principal != principal:
            return self._get_finished(response_id, principal)
        active.cancel(reason)
        return await active.wait_ended()


def response_not_found(response_id: str) -> ApiError:
    """The 404 for an id that nobody has, or somebody else."""
    return ApiError(
        404,
        f"No response with the id {response_id[:100]!r} runs or has just ended",
        "response_not_found",
        param="response_id",
    )
