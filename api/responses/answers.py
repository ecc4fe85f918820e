"""Whole answers of keyed requests that are no responses: chat completions and completions.

Each is computed by a task above its connection and kept for those who send its key again, for as
long as ended responses and within as many bytes. What it ended with is in the journal; one that is
interrupted by its frontend's death does not go on, and is lost.

A refusal, and a failure that asks to come again, is no answer: its key is free.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import attrs
import msgspec
import trio

from ...engine.errors import EngineError
from ..errors import ApiError, to_api_error
from ..schema.fields import JsonObject
from ..settings import ServerLimits
from .claims import Standing, ValueJournal
from .executions import FORGOTTEN, Execution, Executions

logger = logging.getLogger(__name__)
INTERRUPTED = "it was interrupted by the end of its frontend, and answers of this kind do not go on"
_ANSWER = "answer "
# Of failures, the one that is an answer.
FAILED = 500
Compute = Callable[[], Awaitable[JsonObject]]


@attrs.define(eq=False)
class Computation:
    """One that runs, and how it ended."""

    answer_id: str
    principal: str
    compute: Compute
    response: JsonObject | None = attrs.field(default=None, init=False)
    error: ApiError | None = attrs.field(default=None, init=False)
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def is_answered(self) -> bool:
        """Whether it ended with what is to be kept."""
        failed = self.error is not None and self.error.status == FAILED
        return failed or self.response is not None


@attrs.frozen
class WholeAnswer:
    """An answer and its principal's right to it; until then, by CLOCK_MONOTONIC."""

    principal: str
    response: JsonObject | None
    error: ApiError | None
    until_ns: int


@attrs.define(eq=False)
class WholeAnswers:
    """Those that are computed, and ended ones for a while."""

    limits: ServerLimits
    executions: Executions
    journal: ValueJournal | None = None
    _running: dict[str, Computation] = attrs.field(factory=dict, init=False)
    # {id: answer, bytes}, oldest first.
    _ended: OrderedDict[str, tuple[WholeAnswer, int]] = attrs.field(factory=OrderedDict, init=False)
    _ended_bytes: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        values = {} if self.journal is None else self.journal.values()
        found = {
            name.removeprefix(_ANSWER): (msgspec.json.decode(value, type=WholeAnswer), len(value))
            for name, value in values.items()
            if name.startswith(_ANSWER)
        }
        self._ended.update(sorted(found.items(), key=lambda item: item[1][0].until_ns))
        self._ended_bytes = sum(size for _, size in found.values())

    async def run(
        self,
        computation: Computation,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Background task `answer`: from the request to the end. Cancellation: it is lost."""
        answer_id = computation.answer_id
        self._running[answer_id] = computation
        # Before its end a successor knows no more.
        self.executions.bury(answer_id, Standing.LOST, INTERRUPTED, self._until_ns())
        self.executions.handle_admitted(answer_id)
        task_status.started()
        try:
            computation.response = await computation.compute()
        except Exception as failure:  # the firewall of an answer: it fails alone
            computation.error = to_api_error(failure)
            if not isinstance(failure, EngineError | ApiError):
                logger.error("an answer failed; only it ends", exc_info=failure)
        finally:
            del self._running[answer_id]
            if computation.is_answered:
                self._keep(computation)
            elif computation.error is not None:
                self.executions.unbury(answer_id)
            computation.ended.set()

    async def wait_ended(self, answer_id: str) -> None:
        """Return when it is not computed any more."""
        if answer_id in self._running:
            await self._running[answer_id].ended.wait()

    def execution_of(self, answer_id: str, principal: str) -> Execution | None:
        """How it stands; None if it is not here, or another principal's."""
        if answer_id in self._running:
            is_own = self._running[answer_id].principal == principal
            return Execution(standing=Standing.RUNNING) if is_own else None
        self._forget_old()
        answer, _ = self._ended.get(answer_id, (None, 0))
        if answer is None or answer.principal != principal:
            return None
        return Execution(standing=Standing.ENDED, response=answer.response, error=answer.error)

    def _until_ns(self) -> int:
        return time.monotonic_ns() + int(self.limits.ended_s * 1e9)

    def _keep(self, ended: Computation) -> None:
        parts = (ended.principal, ended.response, ended.error)
        answer = WholeAnswer(*parts, self._until_ns())
        value = msgspec.json.encode(answer)
        self._ended[ended.answer_id] = answer, len(value)
        self._ended_bytes += len(value)
        if self.journal is not None:
            self.journal.keep_value(_ANSWER + ended.answer_id, value)
        self.executions.unbury(ended.answer_id)
        self._forget_old()

    def _forget_old(self) -> None:
        now_ns = time.monotonic_ns()
        while self._ended:
            answer_id, (answer, size) = next(iter(self._ended.items()))
            is_over = now_ns >= answer.until_ns
            if self._ended_bytes <= self.limits.ended_bytes_max and not is_over:
                return
            if not is_over:
                self.executions.bury(answer_id, Standing.GONE, FORGOTTEN, answer.until_ns)
            del self._ended[answer_id]
            self._ended_bytes -= size
            if self.journal is not None:
                self.journal.forget_value(_ANSWER + answer_id)
