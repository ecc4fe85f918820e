"""One response from its start until it is forgotten: its record, its readers, its cancel scope.

It is above every connection: readers come and go, each with a cursor of its own. When the last one
has left, the response is aborted, at once or after the time that its request asked for.

No task moves tokens. Readers are told once that there is more, and whoever takes first pulls it
into the record; so what comes meanwhile costs nothing and is merged, and a request whose readers
are all behind meets its credit and is paused. When nobody reads, or somebody waits for the end, it
is pulled when it comes. Must not know how tokens are made, nor frames, lanes or status lines.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from ...runtime.frontend.generation import Usage
from ..errors import ApiError
from ..openai.response_events import Ending, Part, Status
from ..openai.responses_request import ResponseRequest
from ..schema.fields import JsonObject
from .history import Conversation
from .record import ResponseRecord
from .record_reader import RecordReader

# Of one response; each costs a connection anyway.
READERS_MAX = 8


@attrs.define(eq=False)
class LiveResponse:
    """See above. `conversation` is its whole input; `session` is the one socket that may continue
    it, when it is not to be stored; with `streaming` off its output comes all at once. Tokens may
    wait for more of them for `merge_s`.
    """

    record: ResponseRecord
    principal: str
    conversation: Conversation
    session: object = None
    streaming: bool = True
    merge_s: float = 0.0

    # Around the generation; its deadline is the request's, or the end of the time without readers.
    scope: trio.CancelScope = attrs.field(init=False)
    is_admitted: bool = attrs.field(default=False, init=False)
    on_grant: Callable[[int], None] | None = attrs.field(default=None, init=False)
    # Tokens granted before there was a request.
    _granted: int = attrs.field(default=0, init=False)
    _cancel_reason: str | None = attrs.field(default=None, init=False)
    # Those who read events; those for whom it must go on; those who wait for its end.
    _readers: list["AttachedReader"] = attrs.field(factory=list, init=False)
    _holders: int = attrs.field(default=0, init=False)
    _waiting: int = attrs.field(default=0, init=False)
    # Takes what has come into the record; set by whoever runs the response. It never raises.
    pull_from: Callable[[], None] | None = attrs.field(default=None, init=False)
    # Readers know that there is more to pull.
    has_more: bool = attrs.field(default=False, init=False)
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self.scope = trio.CancelScope(deadline=self.request.keeping.deadline_s)

    @property
    def response_id(self) -> str:
        """Its id."""
        return self.record.events.response_id

    @property
    def request(self) -> ResponseRequest:
        """What was asked."""
        return self.record.events.request

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is said."""
        return self.record.ending is not None

    async def wait_ended(self) -> JsonObject:
        """The final response object. Meanwhile slow readers are not waited for."""
        self._waiting += 1
        self.pull()
        try:
            await self._ended.wait()
        finally:
            self._waiting -= 1
        return self.record.snapshot()

    def cancel(self, reason: str) -> None:
        """Ask for the end; idempotent. The response ends with status `cancelled`."""
        if self._cancel_reason is None:
            self._cancel_reason = reason
        self.scope.cancel(reason)

    def grant(self, tokens: int) -> None:
        """The client allows so many tokens more. Never waits."""
        if self.on_grant is None:
            self._granted += tokens
        else:
            self.on_grant(tokens)

    def open_credit(self, on_grant: Callable[[int], None]) -> None:
        """The request is there: pass on what was granted, and what will be."""
        self.on_grant = on_grant
        if self._granted:
            on_grant(self._granted)

    def close_source(self) -> None:
        """Nothing comes any more, and nobody generates: let go of what did."""
        self.pull_from = self.on_grant = None

    # ---- readers

    @contextmanager
    def reading(
        self,
        starting_after: int | None = None,
        wake: "Wake | None" = None,
        *,
        with_notices: bool = True,
    ) -> Iterator["AttachedReader"]:
        """Read in this block, from behind this number. `wake` is called when there is more.

        Raises `ApiError` for a number that is not there yet, or when too many read already.
        """
        if len(self._readers) >= READERS_MAX:
            reason = f"{READERS_MAX} readers are attached to this response already"
            raise ApiError(429, reason, "too_many_readers", "rate_limit_error")
        cursor = RecordReader.behind(self.record, starting_after, with_notices=with_notices)
        reader = AttachedReader(self, cursor, wake)
        self._readers.append(reader)
        self._someone_came()
        try:
            yield reader
        finally:
            self._readers.remove(reader)
            self._check_abandoned()

    def held(self) -> "_Hold":
        """Keep it running in this block, without reading."""
        return _Hold(self)

    def _someone_came(self) -> None:
        deadline_s = self.request.keeping.deadline_s
        if self.scope.deadline != deadline_s:  # it costs to say it again
            self.scope.deadline = deadline_s

    def _check_abandoned(self) -> None:
        if self._readers or self.has_ended:
            return
        self.pull()  # else it would stop at its credit: there is nobody left who does
        if self._holders or self.has_ended or self.request.background:
            return
        keep_s = self.request.keeping.keep_s
        if keep_s:
            until_s = trio.current_time() + keep_s
            self.scope.deadline = min(until_s, self.request.keeping.deadline_s)
        else:
            self.cancel("its last reader has left")

    # ---- tokens

    def note_more(self, is_end: bool = False) -> None:
        """There is more to pull; harmless when told again.

        Called for every token, in a task that serves all requests.
        """
        if is_end or self._waiting or not self._readers:
            self.pull()
            self.wake_readers()
        elif not self.has_more:
            self.has_more = True
            self.wake_readers()

    def pull(self) -> None:
        """Take what has come into the record, and the end if that has come."""
        self.has_more = False
        if self.pull_from is not None:
            self.pull_from()

    def wake_readers(self) -> None:
        """Something may have been added to the record."""
        for reader in self._readers:
            reader.wake_up()

    def end(self, ending: Ending) -> None:
        """Note the end and tell everybody."""
        self.record.end(ending)
        self._ended.set()
        self.wake_readers()

    def ending_when_cut(self, usage: Usage) -> Ending:
        """What the end is when the scope was cancelled or its deadline has passed."""
        late = trio.current_time() >= self.request.keeping.deadline_s
        if late and self._cancel_reason is None:
            return Ending(status=Status.INCOMPLETE, usage=usage, reason="deadline")
        return Ending(status=Status.CANCELLED, usage=usage)


@attrs.define(eq=False)
class AttachedReader:
    """A reader while it is attached. Without `wake` it waits by itself, in `wait_ready`."""

    response: LiveResponse
    cursor: RecordReader
    wake: "Wake | None"
    # Set when everything has been taken.
    done: trio.Event = attrs.field(factory=trio.Event, init=False)
    _ready: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        if self.cursor.is_done:
            self.done.set()

    @property
    def is_ready(self) -> bool:
        """Whether there may be something to take now."""
        return self.response.has_more or self.cursor.is_ready

    def wake_up(self) -> None:
        """There may be more."""
        if self.wake is None:
            self._ready.unpark_all()
        else:
            self.wake(self)

    async def wait_ready(self) -> None:
        """Return when there is something to take, or nothing will come any more."""
        while not (self.done.is_set() or self.is_ready):
            await self._ready.park()

    def take(self, characters_max: int) -> list[Part]:
        """The next events; see `RecordReader.take`."""
        if self.response.has_more:
            self.response.pull()
        cursor = self.cursor
        events = cursor.take(characters_max)
        if cursor.is_done:
            self.done.set()
        return events


@attrs.define(eq=False)
class _Hold:
    """See `LiveResponse.held`; a class, as there is one for each response."""

    response: LiveResponse

    def __enter__(self) -> None:
        self.response._holders += 1
        self.response._someone_came()

    def __exit__(self, *_: object) -> None:
        self.response._holders -= 1
        self.response._check_abandoned()


Wake = Callable[[AttachedReader], None]
