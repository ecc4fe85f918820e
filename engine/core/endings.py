"""Ends requests: by a stop rule, an error, an abort, at the door; and remembers how, where told.

Sans-IO: the one place from which requests leave; the scheduler gives back what they held. Must not
know why a request ends.
"""

from collections.abc import Sequence

import attrs

from ..errors import EngineError, OutputFailed
from ..messages import FinishReason, RequestKey
from .announcements import Announcements
from .request import Frontend, Request
from .request_store import FinishedRequest, RequestStore
from .scheduler import Scheduler
from .statistics import Statistics
from .stop_check import Stop


@attrs.define(eq=False)
class Endings:
    """Over the parts of one engine core."""

    scheduler: Scheduler
    store: RequestStore
    statistics: Statistics
    announcements: Announcements

    def finish(
        self, request: Request, stop: Stop, error: EngineError | None = None
    ) -> FinishedRequest:
        """End it by a stop rule or an error, and remember how; the caller tells its frontend."""
        self.scheduler.end(request, stop.reason)
        self.store.remove(request)
        self.statistics.requests_finished += 1
        record = FinishedRequest(
            frontend=request.frontend,
            request_id=request.request_id,
            attempt=request.attempt,
            output_token_ids=request.token_ids[request.prompt_tokens :],
            finish_reason=stop.reason,
            stop_token_id=stop.token_id,
            complete=stop.complete,
            cached_tokens=request.cached_tokens,
            error="" if error is None else str(error),
            error_code="" if error is None else error.code,
            logs=(request.logprobs, request.prompt_logprobs),
        )
        self.store.keep_finished(record)
        return record

    def fail(self, request: Request, error: EngineError) -> FinishedRequest:
        """End it by an error of its own; others are unharmed."""
        return self.finish(request, Stop(FinishReason.ERROR), error)

    def fail_row(self, request: Request, reason: str) -> FinishedRequest:
        """The worker could not sample for it; what it has computed is not to be trusted."""
        self.scheduler.kv_cache.disown(request)
        return self.fail(request, OutputFailed(reason))

    def abort(self, request: Request) -> None:
        """End it without a word: who aborts knows."""
        self.scheduler.end(request, FinishReason.ABORT)
        self.store.remove(request)
        self.statistics.requests_aborted += 1

    def refuse(
        self, frontend: Frontend, key: RequestKey, error: EngineError, replayed: Sequence[int] = ()
    ) -> None:
        """It has never begun: an error output, and remembered like an end."""
        record = FinishedRequest(
            frontend=frontend,
            request_id=key.request_id,
            attempt=key.attempt,
            output_token_ids=list(replayed),
            finish_reason=FinishReason.ERROR,
            error=str(error),
            error_code=error.code,
        )
        self.store.keep_finished(record)
        self.announcements.put(frontend, record.output_from(len(record.output_token_ids)))
