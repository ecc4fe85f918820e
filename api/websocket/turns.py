"""Turns of one socket: what runs in its lanes, from a client's request to the end of its events.

`lanes` decides what runs when; here it is run, each lane by a task of its own, whose failures end
its turn alone. A process that goes on with the socket of a dead one begins with what it left.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import attrs
import trio

from ...runtime.errors import Overloaded
from ..access_log import AccessEntry
from ..application import Application
from ..errors import ApiError, internal_error
from ..http.held import TurnState, encode_turn
from ..openai.fields.option_fields import ranked
from ..openai.fields.responses_fields import RESPONSES
from ..openai.responses_request import (
    ResponseRequest,
    ResumeRequest,
    read_response_request,
    read_resume_request,
)
from ..responses.response import Response, ResponseReader
from ..routes.table import SOCKET_PATH
from ..schema.fields import JsonObject, ObjectFields, decode_object
from ..schema.tables import EVENT_FIELDS
from ..settings import SocketLimits
from .lanes import CANCELLED, Lanes, Start, Turn
from .writer import SocketWriter, error_event

logger = logging.getLogger(__name__)


class StartTask(Protocol):
    """Starts a task of the socket."""

    def __call__(
        self, async_fn: Callable[..., Awaitable[object]], *args: object, name: str
    ) -> None: ...


@attrs.define(eq=False)
class SocketTurns:
    """Turns of an open socket. `session` is what its responses are kept for."""

    application: Application
    principal: str
    writer: SocketWriter
    limits: SocketLimits
    session: str
    start: StartTask
    # Called when so many responses were refused in a row that this frontend has no room.
    on_overload: Callable[[], None]
    # The engine that the handshake named.
    rank: str | None = None
    # Why no further response is taken, once that is so.
    refusal: ApiError | None = attrs.field(default=None, init=False)
    lanes: Lanes = attrs.field(init=False)
    # {lane: what runs or is read in it}.
    _turns: dict[str | None, Turn] = attrs.field(factory=dict, init=False)
    # Set by changes since `states` was called that neither an event nor `note_new` shows.
    is_changed: bool = attrs.field(default=False, init=False)
    # Came since then, or since `note_new` was asked.
    _new: Start | None = attrs.field(default=None, init=False)
    # Responses in a row that were refused at a limit of the server.
    _overloads: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.lanes = Lanes(self.limits)

    def read_request(self, event: JsonObject) -> ResponseRequest:
        """Read a `response.create`. Raises `ApiError`."""
        self.application.unknown_fields.check(RESPONSES, event, EVENT_FIELDS)
        return read_response_request(
            ranked(self.application.with_model_name(event), self.rank),
            model=self.application.generator.model_name,
            now=trio.current_time(),
            answer_format=self.application.answer_format,
        )

    def handle_request(self, start: Start) -> None:
        """Run it, now or when its lane is free. Raises `ApiError`, and nothing has changed."""
        if self.refusal is not None:
            raise attrs.evolve(self.refusal)
        ready = self.lanes.handle_request(start)
        self.is_changed |= self._new is not None
        self._new = start
        if ready is not None:
            self._turns[ready.request.stream_id] = Turn.of(ready)
            name = f"lane {ready.request.stream_id or '(default)'}"
            self.start(self._run_lane, ready, name=name)

    def find(self, event: ObjectFields) -> Turn:
        """The response that is named: any of this principal's, or what runs in the lane."""
        response_id = event.string("response_id")
        turn = self._turns.get(event.string("stream_id"))
        self.is_changed = True  # by who asks
        if response_id is not None:
            return Turn(None, response_id, is_begun=True)
        if turn is None:
            raise ApiError(404, "No response runs in this lane", "response_not_found")
        return turn

    # ---- lanes

    async def _run_lane(self, start: Start) -> None:
        """Run what a lane is asked for, one after the other, until nothing waits."""
        stream_id = start.request.stream_id
        following: Start | None = start
        while following is not None:
            await self._run_turn(following)
            # The next one opens when the writer has taken this one's end: bounds what waits.
            await self.writer.wait_taken(stream_id)
            following = self.lanes.handle_ended(stream_id)
            if following is not None:
                self._turns[stream_id] = Turn.of(following)
        self.writer.notify()

    async def _run_turn(self, start: Start) -> None:
        """Run one response, or the resumed rest of one, and log it; the firewall of the lane."""
        stream_id, error = start.request.stream_id, None
        entry = AccessEntry(trio.current_time(), is_taken_over=start.is_taken_over)
        try:
            if isinstance(start.request, ResumeRequest):
                await self._run_resume(start.request, entry)
                self.is_changed = True  # there was perhaps nothing to read
            else:
                await self._run_response(start.request, start.response_id, entry)
        except ApiError as refused:
            error = refused
            self._count_overload(refused)
        except Exception as failure:
            logger.error("a turn failed; only its lane ends", exc_info=failure)
            error = internal_error()
        finally:
            self._turns.pop(stream_id, None)
            self._log(stream_id, entry, error)
        if error is not None:
            self.writer.put_last(stream_id, error_event(error, stream_id, start.event_id))

    def _log(self, stream_id: str | None, entry: AccessEntry, error: ApiError | None) -> None:
        if self.application.hands_over and trio.current_effective_deadline() == -math.inf:
            return  # it goes on in another process
        if error is not None:
            entry.error = error.code
        status, now = 200 if error is None else error.status, trio.current_time()
        end = "socket closed"  # if nothing else was the end
        write = self.application.access_log.write
        write(entry, ("WS", SOCKET_PATH), status, now, end=end, lane=stream_id)

    def _count_overload(self, refused: ApiError) -> None:
        """Count an overload; after so many in a row the socket ends."""
        if refused.code != Overloaded.code:
            return
        self._overloads += 1
        if self._overloads == self.limits.overloads_max and self.refusal is None:
            self.refusal = refused
            self.on_overload()

    async def _run_response(
        self, request: ResponseRequest, response_id: str, entry: AccessEntry
    ) -> None:
        responses, lane = self.application.responses, request.stream_id
        order = responses.order(
            request, self.principal, lambda draw: response_id or draw(), session=self.session
        )
        async with responses.open(order) as response:
            self._overloads, entry.generation = 0, response.generated
            with response.reading(wake=partial(self.writer.mark_ready, lane)) as reader:
                self._begin(lane, response, reader)
                await self._read_to_end(lane, reader)

    def _begin(self, lane: str | None, response: Response, reader: ResponseReader) -> None:
        turn = self._turns[lane]
        turn.begin(response)
        turn.reader = reader

    async def _run_resume(self, resume: ResumeRequest, entry: AccessEntry) -> None:
        responses, lane = self.application.responses, resume.stream_id
        entry.note_id(resume.response_id)
        begun = responses.store.begun(resume.response_id) if entry.is_taken_over else None
        if begun is not None:
            entry.generation = begun.generated
        wake = partial(self.writer.mark_ready, lane)
        asked = (resume.response_id, self.principal, resume.starting_after)
        async with responses.read(*asked, session=self.session, wake=wake) as reader:
            self._turns[lane].reader = reader
            if isinstance(reader, ResponseReader):
                await self._read_to_end(lane, reader)
                return
            while not reader.done.is_set():
                await reader.wait_ready()
                if reader.is_ready:
                    self.writer.mark_ready(lane, reader)
                    await self.writer.wait_taken(lane)

    async def _read_to_end(self, stream_id: str | None, reader: ResponseReader) -> None:
        """Let the writer take from this reader until it has the end."""
        try:
            if reader.is_ready:
                self.writer.mark_ready(stream_id, reader)
            await reader.done.wait()
        finally:
            self.application.counters.deltas_merged += reader.cursor.merged
            self.application.changes.notify()

    # ---- for a process that goes on with this socket

    def states(self) -> list[TurnState]:
        """States of the turns that run, and then of those that wait."""
        self.is_changed, self._new = False, None
        running = [turn.state() for turn in self._turns.values() if not turn.is_done]
        return running + [start.state() for start in self.lanes.waiting()]

    def note_new(self) -> bytes:
        """Note of the new turn, if there is one: once."""
        new, self._new = self._new, None
        return b"" if new is None else encode_turn(new.state())

    def go_on(self, turn: TurnState) -> None:
        """Read on, or run what was not begun. Raises `ApiError`."""
        said = (turn.response_id, None, turn.granted, turn.is_cancelled)
        begun = self.application.responses.store.begun(turn.response_id)
        if turn.message and begun is None:
            event = decode_object(turn.message)
            if event["type"] != "response.resume":
                self.handle_request(Start(self.read_request(event), turn.message, *said))
                return
            request = read_resume_request(event)
        else:
            request = ResumeRequest(
                response_id=turn.response_id,
                starting_after=turn.number,
                stream_id=turn.stream_id,
            )
        if begun is not None:
            begun.keep_s = begun.request.keep_s  # its client is there, as it was
            begun.grant_up_to((begun.request.options.credit or 0) + turn.granted)
            if turn.is_cancelled:
                begun.cancel(CANCELLED)
        start = Start(request, turn.message, *said, is_taken_over=begun is not None)
        self.handle_request(start)
