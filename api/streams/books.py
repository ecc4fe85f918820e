"""Books of one frontend over streams of all surfaces: its journal, claims of keys, executions."""

import math
import time
from collections.abc import Callable

import attrs

from ...runtime.journal.journal import Journal
from ..settings import ServerLimits
from .claims import Claims, Standing
from .executions import Executions


def ignore_end() -> None:
    """A default that does nothing."""


@attrs.define(eq=False)
class StreamBooks:
    """Books that outlive streams, and the limits within which ended ones are kept."""

    limits: ServerLimits
    # Called when a stream has ended.
    on_ended: Callable[[], None] = ignore_end
    # The journal for a successor of this frontend, if there is one.
    journal: Journal | None = None
    # This life of this frontend.
    epoch: int = 0
    # How long one whose reader was cut off waits for it, and until when.
    adopted_keep_s: float = 0.0
    adopted_until_s: float = -math.inf

    # Idempotency keys whose home this frontend is; and of those that it executes, the rest.
    claims: Claims = attrs.field(init=False)
    executions: Executions = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        limits, journal, now_ns = self.limits, self.journal, time.monotonic_ns()
        self.claims = Claims(limits.keys_max, int(limits.key_age_s * 1e9), journal, now_ns)
        is_whole = journal is not None and journal.is_whole
        until_ns = now_ns + int(limits.ended_s * 1e9)
        self.executions = Executions(limits.keys_max, self.epoch, journal, is_whole, until_ns)

    def may_lack_events(self, *names: str) -> bool:
        """Whether readers may have seen more than was found of one of these, by the journal."""
        return self.journal is not None and any(map(self.journal.may_lack, names))

    def kept_s(self, *, is_wanted: bool, is_adopted: bool) -> float:
        """How long a stream is kept after its end, by clients' wish or for a reader cut off."""
        if is_wanted:
            return self.limits.ended_s
        return self.adopted_keep_s if is_adopted else 0.0

    def forget(self, *names: str) -> None:
        """No successor is to find these streams."""
        if self.journal is not None and names:
            self.journal.forget(*names)

    def bury(self, stream_id: str, standing: Standing, reason: str) -> None:
        """Bury an answer that is not kept: a request with its key is not executed again."""
        until_ns = time.monotonic_ns() + int(self.limits.ended_s * 1e9)
        self.executions.bury(stream_id, standing, reason, until_ns)
