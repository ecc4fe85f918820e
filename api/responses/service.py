"""Responses service: starts responses above all connections, and opens readers of them.

A response that is started here runs in this service's nursery until it ends, is cancelled, or has
lost its readers; what a connection holds is a reader.
"""

import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import msgspec
import trio

from ...nurseries.tasks.background import start_background_task, waiting_for
from ...runtime.frontend.adoption import AdoptedStream
from ...runtime.frontend.generation import Generator
from ...runtime.messages import ForeignVerb
from ..errors import ApiError
from ..openai.logprobs import make_formatter
from ..openai.response_events import ResponseEvents
from ..openai.response_id import IdSource
from ..openai.responses_request import ResponseRequest, ResumeRequest
from ..schema.fields import out_of_range
from ..settings import ServeSettings
from .adoption import rebuild, rebuild_end
from .claims import Standing
from .executions import UNREADABLE
from .foreign import ForeignReader, ForeignResponses
from .history import Conversation, continued
from .record import ResponseRecord
from .response import Response, ResponseReader, Wake
from .store import ResponseStore
from .verbs import carry_out

logger = logging.getLogger(__name__)
Reader = ResponseReader | ForeignReader


@attrs.define(eq=False)
class ResponseService:
    """One per frontend. `run` is its background task; without it nothing can be started."""

    generator: Generator
    settings: ServeSettings
    store: ResponseStore
    foreign: ForeignResponses
    ids: IdSource
    # Raises `ApiError` when no new work is taken.
    check_accepting: Callable[[], None]
    # Whether the model's template shows tools.
    has_tools: bool = False
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `responses`; never returns. Cancellation: aborts all responses."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None

    @asynccontextmanager
    async def open(
        self,
        request: ResponseRequest,
        principal: str,
        *,
        session: object = None,
        streaming: bool = True,
        keyed_id: str = "",
    ) -> AsyncIterator[Response]:
        """Start a response and hold it for the block; it is admitted when the block begins.

        What becomes of it after the block, its readers and its request decide. `session` is the
        socket that asks; with `streaming` off all output comes at once; `keyed_id` is the id that
        holds the claim of its idempotency key. Raises `ApiError` when it is refused. Cancelled
        meanwhile: it is aborted.
        """
        self.check_accepting()
        response = await self._prepare(
            request, principal, session, streaming=streaming, keyed_id=keyed_id
        )
        with response.held():
            await self._start(response)
            yield response

    async def _start(self, response: Response) -> None:
        """Returns when it was admitted; raises `ApiError` if it was not."""
        run = partial(response.run, self.generator, self.store)
        await self.start(run, f"response {response.response_id}")

    async def start(self, run: Callable[..., Awaitable[None]], name: str) -> None:
        """Start a task above all connections, of a response or a completion, that waits for tokens.

        Returns when it says that it has started; raises what it raises before that.
        """
        assert self._nursery is not None
        await start_background_task(self._nursery, run, name=name, waits_for="tokens")

    async def run_whole(self, request: ResponseRequest, principal: str) -> Response:
        """Run a response to its end in the caller's task: one that does not outlive its caller.

        All its output comes at once. Raises `ApiError` when it is refused. Cancelled meanwhile: it
        is aborted.
        """
        self.check_accepting()
        response = await self._prepare(request, principal, None, streaming=False)
        with response.held(), waiting_for("tokens"):
            await response.run(self.generator, self.store)
        return response

    async def adopt(self, streams: Iterable[AdoptedStream]) -> None:
        """Go on with responses of a life of this frontend before; they run when this returns.

        What a server of other settings has begun, and this one would refuse, ends. Cancelled
        meanwhile: all are aborted.
        """
        for adopted in streams:
            name = adopted.admission.name
            adopted.note_rebuilding()
            try:
                response = rebuild(adopted, self.generator, has_tools=self.has_tools)
                ended_ns = rebuild_end(response)
            except (ApiError, msgspec.MsgspecError) as failure:
                logger.error("response %s cannot be read again: %s", name, failure)
                self.store.bury(name, Standing.LOST, UNREADABLE)
                adopted.forget()
                continue
            if ended_ns is not None:
                self.store.add(response)
                self.store.end(response, ended_ns)
            else:
                if not response.request.background:
                    keep_s = self._keep_s(response.request, is_keyed=response.is_keyed)
                    response.keep_s = max(keep_s, self.store.adopted_keep_s)
                    response.await_readers()
                await self._start(response)
            adopted.note_rebuilt()

    def _keep_s(self, request: ResponseRequest, *, is_keyed: bool) -> float:
        """How long it goes on without readers.

        The client of one with a key is expected to send it again: a whole answer is made for that,
        as its client cannot say where it stopped reading.
        """
        if not is_keyed:
            return request.keeping.keep_s
        if not request.stream:
            return math.inf
        return max(request.keeping.keep_s, self.settings.resume_keep_s)

    async def _prepare(
        self,
        request: ResponseRequest,
        principal: str,
        session: object,
        *,
        streaming: bool,
        keyed_id: str = "",
    ) -> Response:
        keep_s = self.settings.resume_keep_s
        if request.keeping.keep_s > keep_s:
            raise out_of_range("runtime.keep_s", f"at most {keep_s:g} on this server")
        before = await self._conversation_before(request, principal, session)
        events = ResponseEvents(
            response_id=keyed_id or self.ids.draw_response_id(),
            created_at=int(time.time()),
            model=self.generator.model_name,
            request=request,
            formatter=make_formatter(self.generator.token_bytes, request.sampling.logprobs),
        )
        response = Response(
            ResponseRecord(events),
            principal,
            continued(before, request),
            session=None if request.store else session,
            streaming=streaming,
            merge_s=self._merge_s(request, streaming=streaming),
            is_keyed=bool(keyed_id),
            before=before,
        )
        response.keep_s = self._keep_s(request, is_keyed=response.is_keyed)
        return response

    def _merge_s(self, request: ResponseRequest, *, streaming: bool) -> float:
        keeping = request.keeping
        if keeping.deadline_s < math.inf:
            return 0.0  # what waits would be lost
        if streaming and keeping.merge_s is not None:
            return keeping.merge_s
        return self.settings.merge_s(streaming=streaming)

    async def _conversation_before(
        self, request: ResponseRequest, principal: str, session: object
    ) -> Conversation | None:
        previous_id = request.previous_response_id
        if previous_id is None:
            return None
        try:
            if self.foreign.is_foreign(previous_id):
                asked = (ForeignVerb.CONVERSATION, previous_id, principal)
                found: Conversation = await self.foreign.call(*asked)
                return found
            return self.store.conversation_of(previous_id, principal, session)
        except ApiError as error:
            raise _of_previous(error, previous_id) from error

    async def ask(self, verb: ForeignVerb, response_id: str, principal: str) -> Any:
        """What `carry_out` gives for a response, here or in another frontend. Raises `ApiError`."""
        if self.foreign.is_foreign(response_id):
            return await self.foreign.call(verb, response_id, principal)
        return await carry_out(self.store, verb, response_id, principal)

    @asynccontextmanager
    async def read(
        self,
        resume: ResumeRequest,
        principal: str,
        *,
        session: object = None,
        wake: Wake | None = None,
    ) -> AsyncIterator[Reader]:
        """Read a response that runs or is kept, here or in another frontend, in this block.

        Raises `ApiError`: there is none (for this principal), or no such number yet.
        """
        await trio.lowlevel.checkpoint()
        if self.foreign.is_foreign(resume.response_id):
            named = (resume.response_id, principal, resume.starting_after)
            reader = ForeignReader(self.foreign, *named)
            await reader.wait_ready()
            yield reader
            return
        response = self.store.find(resume.response_id, principal, session)
        with response.reading(resume.starting_after, wake) as attached:
            yield attached


def _of_previous(error: ApiError, previous_id: str) -> ApiError:
    """The same, about the field that named the response."""
    if error.code != "response_not_found":
        return attrs.evolve(error, param="previous_response_id")
    return ApiError(
        error.status,
        f"Previous response with id {previous_id[:100]!r} not found",
        "previous_response_not_found",
        param="previous_response_id",
    )
