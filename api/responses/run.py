"""Runs one response: the task from its prompt to its end.

It opens the request and is there until the end; tokens are pulled past it, by those who read.
Whatever goes wrong after the admission is the response's own end. Must not know who reads, nor
protocols.
"""

import logging

import attrs
import trio

from ...engine.errors import EngineError
from ...engine.messages import FinishReason, RequestEvent, RequestEventKind
from ...engine.sampling_params import SamplingParams
from ...nurseries.tasks.parking import Doorbell
from ...runtime.frontend.generation import GenerationStream, Generator, Usage
from ..errors import ApiError, engine_error, to_api_error
from ..openai.response_events import Ending, Event, Status
from .history import prompt_of
from .response import LiveResponse
from .store import ResponseRegistry

logger = logging.getLogger(__name__)


async def run_response(
    response: LiveResponse,
    generator: Generator,
    registry: ResponseRegistry,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Background task `response`: from the prompt to the end; started when it is admitted.

    Raises `ApiError` when it is not admitted; afterwards nothing: whatever goes wrong is the
    response's end. Cancellation: the request is aborted, the response ends as cancelled.
    """
    run = _Run(response, registry, task_status)
    try:
        with response.scope:
            await run.generate(generator)
        if response.scope.cancelled_caught:
            run.admit()
    except Exception as error:
        run.fail(error)
    finally:
        run.cut()


@attrs.define(eq=False)
class _Run:
    response: LiveResponse
    registry: ResponseRegistry
    task_status: trio.TaskStatus[None]
    stream: GenerationStream | None = None
    # The response has ended, by whatever was pulled.
    finished: Doorbell = attrs.field(factory=Doorbell)

    @property
    def usage(self) -> Usage:
        return Usage(0, 0) if self.stream is None else self.stream.usage

    def admit(self) -> None:
        """From here on it is known, and has readers."""
        if not self.response.is_admitted:
            self.response.is_admitted = True
            self.registry.add(self.response)
            self.task_status.started()

    def end(self, ending: Ending) -> None:
        """Whoever is first says how it ended."""
        if self.response.is_admitted and not self.response.has_ended:
            self.response.end(ending)
            self.registry.end(self.response)
            self.finished.ring()

    def cut(self) -> None:
        """Nothing comes any more."""
        self.response.close_source()
        if not self.response.has_ended:
            self.end(self.response.ending_when_cut(self.usage))

    def fail(self, failure: Exception) -> None:
        """Raises `ApiError` before the admission."""
        error = to_api_error(failure, self.response.request.names)
        if not isinstance(failure, EngineError | ApiError):
            logger.error("a response failed; only it ends", exc_info=failure)
        if not self.response.is_admitted:
            raise error from failure
        self.end(Ending(status=Status.FAILED, usage=self.usage, error=error))

    async def generate(self, generator: Generator) -> None:
        """From the prompt to the last token. Raises as the generator does."""
        response, request = self.response, self.response.request
        options = request.options
        opening = generator.generate(
            prompt_of(response.conversation, request.instructions, request.tools),
            request.sampling if request.generate else _prompt_alone(request.sampling),
            request_id=response.response_id,
            principal=response.principal,
            cache_salt=options.cache_salt,
            priority=options.priority,
            streaming=response.streaming and request.generate,
            events=options.events,
            credit=request.keeping.credit if request.generate else None,
            merge_s=response.merge_s,
        )
        async with opening as self.stream:
            response.open_credit(self.stream.grant)
            self.admit()
            if request.generate:
                await self._follow(self.stream)
            else:
                await self.stream.collect()
                self.end(Ending(status=Status.COMPLETED, usage=self.usage))

    async def _follow(self, stream: GenerationStream) -> None:
        """Be there until the end; what comes is pulled by those who want it."""
        self.response.pull_from = self.pull
        stream.follow(self.response.note_more)
        self.response.note_more(stream.has_end)
        try:
            await self.finished.wait()
        finally:
            self.response.pull()

    def pull(self) -> None:
        """Take what there is into the record. Runs in any task; a failure is the end."""
        assert self.stream is not None
        record, take = self.response.record, self.stream.take_nowait
        if record.ending is not None:
            return
        try:
            while (output := take()) is not None:
                for event in output.events:
                    notice = _notice_of(event, self.response.response_id, record.token_count)
                    record.add_notice(notice)
                record.append(output)
                if output.finish_reason is not None:
                    self.end(_ending_of(output.finish_reason, self.usage))
                    return
        except Exception as failure:
            self.fail(failure)


def _prompt_alone(sampling: SamplingParams) -> SamplingParams:
    """For a prompt that is only computed: what decides about it, and the one token it takes."""
    return SamplingParams(max_tokens=1, truncate_prompt_tokens=sampling.truncate_prompt_tokens)


def _ending_of(reason: FinishReason, usage: Usage) -> Ending:
    match reason:
        case FinishReason.STOP:
            return Ending(status=Status.COMPLETED, usage=usage)
        case FinishReason.LENGTH:
            return Ending(status=Status.INCOMPLETE, usage=usage, reason="max_output_tokens")
        case FinishReason.ERROR:
            return Ending(status=Status.FAILED, usage=usage, error=engine_error())
        case FinishReason.DEADLINE:
            return Ending(status=Status.INCOMPLETE, usage=usage, reason="deadline")
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
