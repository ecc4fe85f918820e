"""Runs one response: takes from the generator and writes into the record.

A piece is written down in the task that brings it; the response's own task begins, waits and ends.
Nobody is waited for but the fastest reader: a request whose readers are all behind meets its credit
and is paused. Whatever goes wrong after the admission is the response's own end. Must not know who
reads, nor protocols.
"""

import logging

import attrs
import trio

from ..engine.errors import EngineError
from ..engine.messages import FinishReason, RequestEvent, RequestEventKind
from ..engine.sampling_params import SamplingParams
from ..runtime.generation import GenerationOutput, GenerationStream, Generator, Usage
from .errors import ApiError, engine_error, to_api_error
from .live_response import LiveResponse
from .response_history import prompt_of
from .response_registry import ResponseRegistry
from .responses import Ending, Event, Status
from .responses_request import FIELD_NAMES

logger = logging.getLogger(__name__)


async def run_response(
    response: LiveResponse,
    generator: Generator,
    registry: ResponseRegistry,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Background task `response`: generate to the end; started when the request is admitted.

    Raises `ApiError` when it is not admitted; afterwards nothing: whatever goes wrong is the
    response's end. Cancellation: the request is aborted, the response ends as cancelled.
    """
    run = _Run(response, generator, registry, task_status)
    try:
        with response.scope:
            await run.generate()
        if response.scope.cancelled_caught:
            run.admit()
            run.ending = response.ending_when_cut(run.usage)
    except EngineError as error:
        run.fail(to_api_error(error, FIELD_NAMES), error)
    except Exception as error:
        if not isinstance(error, ApiError):
            logger.error("a response failed; only it ends", exc_info=error)
        run.fail(to_api_error(error), error)
    finally:
        if response.is_admitted:
            response.end(run.ending or response.ending_when_cut(run.usage))
            registry.end(response)


@attrs.define(eq=False)
class _Run:
    response: LiveResponse
    generator: Generator
    registry: ResponseRegistry
    task_status: trio.TaskStatus[None]
    stream: GenerationStream | None = None
    ending: Ending | None = None
    # Set when the last piece was taken, or none will be.
    _over: trio.Event = attrs.field(factory=trio.Event, init=False)
    _failure: Exception | None = attrs.field(default=None, init=False)

    @property
    def usage(self) -> Usage:
        return Usage(0, 0) if self.stream is None else self.stream.usage

    def admit(self) -> None:
        """From here on it is known, and has readers."""
        if not self.response.is_admitted:
            self.response.is_admitted = True
            self.registry.add(self.response)
            self.task_status.started()

    def fail(self, error: ApiError, cause: Exception) -> None:
        """Raises `error` before the admission."""
        if not self.response.is_admitted:
            raise error from cause
        self.ending = Ending(status=Status.FAILED, usage=self.usage, error=error)

    async def generate(self) -> None:
        """From the prompt to the last token. Raises as the generator does."""
        response, request = self.response, self.response.request
        options = request.options
        opening = self.generator.generate(
            prompt_of(response.conversation, request.instructions),
            request.sampling if request.generate else SamplingParams(max_tokens=1),
            request_id=response.response_id,
            principal=response.principal,
            cache_salt=options.cache_salt,
            priority=options.priority,
            streaming=response.streaming and request.generate,
            events=options.events,
            credit=request.keeping.credit if request.generate else None,
        )
        async with opening as self.stream:
            response.open_credit(self.stream.grant)
            self.admit()
            if request.generate:
                await self._follow(self.stream)
            else:
                await self.stream.collect()
                self.ending = Ending(status=Status.COMPLETED, usage=self.usage)

    async def _follow(self, stream: GenerationStream) -> None:
        """Until the end. Pieces are written down where they come: no switch of tasks for each."""
        stream.follow(self._take_all)
        self._take_all()
        await self._over.wait()
        if self._failure is not None:
            raise self._failure

    def _take_all(self) -> None:
        """Take what is there, up to where readers are too far behind. Never raises."""
        if self._over.is_set():
            return
        try:
            assert self.stream is not None
            while not self.response.pauses(self._take_all):
                output = self.stream.take_nowait()
                if output is None:
                    break
                self._note(output)
        except Exception as error:  # raised to the task that runs the response
            self._failure = error
            self._over.set()
        self.response.wake_readers()

    def _note(self, output: GenerationOutput) -> None:
        record = self.response.record
        for event in output.events:
            notice = _notice_of(event, self.response.response_id, record.token_count)
            record.add_notice(notice)
        record.append(output)
        if output.finish_reason is not None:
            assert self.stream is not None
            self.ending = _ending_of(output.finish_reason, self.stream.usage)
            self._over.set()


def _ending_of(reason: FinishReason, usage: Usage) -> Ending:
    match reason:
        case FinishReason.STOP:
            return Ending(status=Status.COMPLETED, usage=usage)
        case FinishReason.LENGTH:
            return Ending(status=Status.INCOMPLETE, usage=usage, reason="max_output_tokens")
        case FinishReason.ERROR:
            return Ending(status=Status.FAILED, usage=usage, error=engine_error())
        case FinishReason.ABORT:
            return Ending(status=Status.CANCELLED, usage=usage)


def _notice_of(event: RequestEvent, response_id: str, token_index: int) -> Event:
    """What a client is told: `runtime.queued` and so on, and before which token it happened."""
    notice: Event = {
        "type": f"runtime.{event.kind}",
        "response_id": response_id,
        "token_index": token_index,
    }
    if event.kind is RequestEventKind.QUEUED:
        notice["position"] = event.detail
    return notice
