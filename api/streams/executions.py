"""Executions of requests with idempotency keys in this frontend, beside those that the store has.

Those that are pending, before their admission; and tombstones of answers that were not kept for
their time, so that no request takes them for never executed. See `claims`.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import attrs
import msgspec
import trio

from ..errors import ApiError
from ..schema.fields import JsonObject
from .claims import NEVER_NS, Standing, ValueJournal, kept_values

_TOMBSTONE = "tombstone "
_SINCE = "since"
DELETED = "the answer was deleted by its client"
FORGOTTEN = "the answer was forgotten before its time, to make room for others"
UNREADABLE = "its frontend died, and its successor could not go on with the request"
INTERRUPTED = "it was interrupted, and its output is not whole"
NO_JOURNAL = "its frontend died, and whether it was executed is not known"


# How long the executor waits for what is asked before it says how it is.
LOOK_UP_S = 1.0
# A failure with this status is no answer: the next request with its key is executed.
COME_AGAIN = 503


@attrs.frozen
class ExecutionCall:
    """How does this response stand, which was claimed in this life of its executor?"""

    epoch: int
    until_end: bool = False


@attrs.frozen(kw_only=True)
class Execution:
    """How a response stands; with its end its object, or the failure that it is answered by."""

    standing: Standing
    reason: str = ""
    response: JsonObject | None = None
    error: ApiError | None = None


class Executed(Protocol):
    """A response or a completion that was admitted."""

    @property
    def has_ended(self) -> bool:
        """Whether there is an answer."""

    async def wait_ended(self) -> object:
        """Return when there is one."""

    def whole(self) -> JsonObject:
        """The answer. Raises the failure that it ended with."""


@attrs.frozen
class Tombstone:
    """There was an execution, whose answer cannot be had; until then, by CLOCK_MONOTONIC."""

    standing: Standing
    reason: str
    until_ns: int


@attrs.define(eq=False)
class Executions:
    """Executions that the store does not have; `is_whole`: the journal was read to its end.

    Of lives before the first that this journal has seen nothing is known: it was given up with its
    rank, or could take no more.
    """

    tombstones_max: int
    epoch: int = 0
    journal: ValueJournal | None = None
    is_whole: bool = False
    # No tombstone that is found is kept for longer: see `Claims.read_ns`.
    until_max_ns: int = NEVER_NS
    # The first of those lives.
    _since: int = attrs.field(init=False)
    # {response id: set when it is no longer pending}
    _pending: dict[str, trio.Event] = attrs.field(factory=dict, init=False)
    # Ids that were said to be unknown, oldest first: their claims may be others' since.
    _unknown: OrderedDict[str, None] = attrs.field(factory=OrderedDict, init=False)
    # Oldest first.
    _tombstones: OrderedDict[str, Tombstone] = attrs.field(factory=OrderedDict, init=False)

    def __attrs_post_init__(self) -> None:
        found = kept_values(self.journal, _TOMBSTONE, Tombstone)
        for name, (each, _) in sorted(found.items(), key=lambda item: item[1][0].until_ns):
            until_ns = min(each.until_ns, self.until_max_ns)
            self._tombstones[name] = attrs.evolve(each, until_ns=until_ns)
        since = kept_values(self.journal, _SINCE, int).get("") if self.is_whole else None
        self._since = self.epoch if since is None else since[0]
        if self.journal is not None and since is None:
            self.journal.keep_value(_SINCE, str(self._since).encode())

    @contextmanager
    def pending(self, response_id: str) -> Iterator[None]:
        """Mark an execution that is admitted in this block, or never."""
        self._pending[response_id] = trio.Event()
        try:
            yield
        finally:
            self.handle_admitted(response_id)

    def handle_admitted(self, response_id: str) -> None:
        """Note that an execution runs; harmless when repeated."""
        event = self._pending.pop(response_id, None)
        if event is not None:
            event.set()

    async def wait_begun(self, response_id: str) -> None:
        """Return when it is not pending."""
        event = self._pending.get(response_id)
        if event is not None:
            await event.wait()

    def bury(self, response_id: str, standing: Standing, reason: str, until_ns: int) -> None:
        """Bury an answer that is not kept: no other may be executed for it until then."""
        self.unbury(response_id)
        if len(self._tombstones) == self.tombstones_max:
            self.unbury(next(iter(self._tombstones)))
        tombstone = self._tombstones[response_id] = Tombstone(standing, reason, until_ns)
        if self.journal is not None:
            self.journal.keep_value(_TOMBSTONE + response_id, msgspec.json.encode(tombstone))

    def unbury(self, response_id: str) -> None:
        """Remove a tombstone, if there is one."""
        if self._tombstones.pop(response_id, None) is not None and self.journal is not None:
            self.journal.forget_value(_TOMBSTONE + response_id)

    def execution_of(self, response_id: str, epoch: int, now_ns: int) -> Execution:
        """Execution of a response that the store does not have."""
        if response_id in self._pending:
            return Execution(standing=Standing.PENDING)
        tombstone = self._tombstones.get(response_id)
        if tombstone is not None and now_ns < tombstone.until_ns:
            return Execution(standing=tombstone.standing, reason=tombstone.reason)
        self.unbury(response_id)
        if epoch >= self._since:
            if len(self._unknown) == self.tombstones_max:
                self._unknown.popitem(last=False)
            self._unknown[response_id] = None
            return Execution(standing=Standing.UNKNOWN)
        return Execution(standing=Standing.LOST, reason=NO_JOURNAL)

    def was_unknown(self, response_id: str) -> bool:
        """Whether somebody was told so, and may execute in its place: it is to begin no more."""
        return response_id in self._unknown

    async def look_up(
        self, response_id: str, asked: ExecutionCall, find: Callable[[], Executed | None]
    ) -> Execution:
        """How it stands when it has begun, or ended, or in a moment; `find` finds it if kept."""
        with trio.move_on_after(LOOK_UP_S):
            await self.wait_begun(response_id)
            begun = find()
            if begun is not None and asked.until_end:
                await begun.wait_ended()
        found = find()  # as it is now: it may just have begun
        if found is None:
            return self.execution_of(response_id, asked.epoch, time.monotonic_ns())
        if not found.has_ended:
            return Execution(standing=Standing.RUNNING)
        try:
            return Execution(standing=Standing.ENDED, response=found.whole())
        except ApiError as error:
            if error.status == COME_AGAIN:
                return Execution(standing=Standing.UNKNOWN)
            return Execution(standing=Standing.ENDED, error=error)
