"""HTTP routes of OpenAI's older protocols: `POST /v1/chat/completions`, `POST /v1/completions`.

Thin shells: bodies are validated, chunks built by pure modules; here is the waiting. A client that
leaves while it is answered cancels its generation. Must not know heads or framing.
"""

import time
from contextlib import AsyncExitStack

import attrs
import trio

from ..engine.errors import EngineError
from ..engine.messages import FinishReason
from ..nurseries.background import start_background_task_soon
from ..runtime.generation import GenerationOutput, GenerationStream, Usage
from .application import Application
from .chat import ChatAnswer
from .chat_request import ChatRequest, read_chat_request
from .completions import Choice, CompletionsAnswer, usage_of
from .completions_request import CompletionsRequest, TextOrIds, read_completions_request
from .errors import ApiError, engine_error, internal_error, to_api_error
from .fields import JsonObject
from .http import HttpConnection
from .response_id import draw_id
from .sse import DONE, data_frame

Parameters = dict[str, str]


async def create_chat_completion(
    connection: HttpConnection, application: Application, principal: str, _: Parameters
) -> None:
    """`POST /v1/chat/completions`. Raises `ApiError` before the answer has begun."""
    application.check_accepting()
    body = await connection.read_json()
    request = read_chat_request(body, model=application.generator.model_name)
    answer = ChatAnswer(
        completion_id=draw_id("chatcmpl"),
        created=int(time.time()),
        model=application.generator.model_name,
        with_token_ids=request.options.with_token_ids,
    )
    try:
        with connection.cancel_when_client_leaves():
            async with application.generator.generate(
                request.prompt,
                request.sampling,
                request_id=answer.completion_id,
                principal=principal,
                cache_salt=request.options.runtime.cache_salt,
                priority=request.options.runtime.priority,
                streaming=request.options.stream,
            ) as stream:
                if request.options.stream:
                    await _stream_chat(connection, answer, request, stream)
                    return
                await stream.collect()
            if stream.finish_reason is FinishReason.ERROR:
                raise engine_error()
            await connection.answer_json(200, answer.completion(stream))
    except EngineError as error:
        raise to_api_error(error, request.options.names) from error


async def _stream_chat(
    connection: HttpConnection, answer: ChatAnswer, request: ChatRequest, stream: GenerationStream
) -> None:
    """Send chunks as tokens come. A failure within becomes an error event, which SDKs raise."""
    await connection.start_events()
    await connection.send_events(data_frame(answer.opening()))
    try:
        async for output in stream:
            if output.finish_reason is FinishReason.ERROR:
                await connection.send_events(data_frame(engine_error().body()))
                await connection.end_events()
                return
            chunks = answer.chunks(output)
            if chunks:
                await connection.send_events(b"".join([data_frame(chunk) for chunk in chunks]))
    except EngineError as error:
        await connection.send_events(data_frame(to_api_error(error).body()))
        await connection.end_events()
        return
    last = data_frame(answer.usage_chunk(stream.usage)) if request.options.include_usage else b""
    await connection.send_events(last + DONE)
    await connection.end_events()


async def create_completion(
    connection: HttpConnection, application: Application, principal: str, _: Parameters
) -> None:
    """`POST /v1/completions`. Raises `ApiError` before the answer has begun.

    All prompts of a batch run at the same time; when one fails, all of them do.
    """
    application.check_accepting()
    body = await connection.read_json()
    request = read_completions_request(body, model=application.generator.model_name)
    answer = CompletionsAnswer(
        completion_id=draw_id("cmpl"),
        created=int(time.time()),
        model=application.generator.model_name,
        with_token_ids=request.options.with_token_ids,
    )
    try:
        with connection.cancel_when_client_leaves():
            if not request.generates:
                await _answer_echo(connection, application, answer, request)
                return
            async with AsyncExitStack() as stack:
                batch = _Batch(connection, answer, request)
                for place, prompt in enumerate(request.prompts):
                    opening = application.generator.generate(
                        await _prompt_of(application, request, prompt),
                        request.sampling,
                        request_id=f"{answer.completion_id}-{place}",
                        principal=principal,
                        cache_salt=request.options.runtime.cache_salt,
                        priority=request.options.runtime.priority,
                        streaming=request.options.stream,
                    )
                    batch.streams.append(await stack.enter_async_context(opening))
                    batch.echoed.append(await _echo_of(application, request, prompt))
                if request.options.stream:
                    await batch.stream()
                    return
                choices = await batch.collect()
            usage = usage_of(stream.usage for stream in batch.streams)
            await connection.answer_json(200, answer.whole(choices, usage))
    except EngineError as error:
        raise to_api_error(error, request.options.names) from error


async def _prompt_of(
    application: Application, request: CompletionsRequest, prompt: TextOrIds
) -> TextOrIds:
    """The prompt as the runtime takes it: it adds special tokens to every text."""
    if request.add_special_tokens or not isinstance(prompt, str):
        return prompt
    return await application.generator.tokenize(prompt, add_special_tokens=False)


async def _echo_of(application: Application, request: CompletionsRequest, prompt: TextOrIds) -> str:
    """The text of a prompt that is to be echoed, "" without echo."""
    if not request.echo or isinstance(prompt, str):
        return prompt if request.echo and isinstance(prompt, str) else ""
    return await application.generator.detokenize(prompt)


async def _answer_echo(
    connection: HttpConnection,
    application: Application,
    answer: CompletionsAnswer,
    request: CompletionsRequest,
) -> None:
    """Echo the prompts with no token computed: `echo` with `max_tokens: 0`."""
    choices = []
    for prompt in request.prompts:
        ids = prompt
        if isinstance(ids, str):
            ids = await application.generator.tokenize(
                ids, add_special_tokens=request.add_special_tokens
            )
        echoed = await _echo_of(application, request, prompt)
        choices.append(Choice(prompt_token_ids=ids, echoed=echoed))
    usage = Usage(sum(len(choice.prompt_token_ids) for choice in choices), 0)
    if not request.options.stream:
        await connection.answer_json(200, answer.whole(choices, usage))
        return
    end = GenerationOutput("", [], 0, finish_reason=FinishReason.LENGTH)
    chunks = []
    for place, choice in enumerate(choices):
        chunks.append(answer.echo_chunk(place, choice.echoed, choice.prompt_token_ids))
        chunks += answer.chunks(place, end)
    if request.options.include_usage:
        chunks.append(answer.usage_chunk(usage))
    await connection.start_events()
    await connection.send_events(b"".join([data_frame(chunk) for chunk in chunks]) + DONE)
    await connection.end_events()


@attrs.define(eq=False)
class _Batch:
    """The prompts of one request, all in flight; `echoed` are their texts, or ""."""

    connection: HttpConnection
    answer: CompletionsAnswer
    request: CompletionsRequest
    streams: list[GenerationStream] = attrs.field(factory=list, init=False)
    echoed: list[str] = attrs.field(factory=list, init=False)
    # One task writes at a time; the others wait, and so their requests are paused.
    _lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    # The first one ends all.
    _error: ApiError | None = attrs.field(default=None, init=False)

    async def collect(self) -> list[Choice]:
        """Whole choices, in order. Raises what a stream ended with."""
        choices = []
        for stream, echoed in zip(self.streams, self.echoed, strict=True):
            await stream.collect()
            assert stream.finish_reason is not None
            if stream.finish_reason is FinishReason.ERROR:
                raise engine_error()
            choice = Choice(
                prompt_token_ids=stream.prompt_token_ids,
                echoed=echoed,
                text=stream.text,
                token_ids=stream.token_ids,
                finish_reason=stream.finish_reason,
                stop_reason=stream.stop_reason,
            )
            choices.append(choice)
        return choices

    async def stream(self) -> None:
        """Send chunks of all choices as they come, then the end; a failure is an error event."""
        await self.connection.start_events()
        async with trio.open_nursery() as nursery:
            for place, stream in enumerate(self.streams):
                start_background_task_soon(
                    nursery,
                    self._pump,
                    place,
                    stream,
                    nursery.cancel_scope,
                    name="choice",
                    takes_along=nursery.cancel_scope,
                )
        if nursery.cancel_scope.cancelled_caught and self._error is None:
            self._error = internal_error()
        if self._error is not None:
            last = data_frame(self._error.body())
        else:
            last = DONE
            if self.request.options.include_usage:
                usage = usage_of(stream.usage for stream in self.streams)
                last = data_frame(self.answer.usage_chunk(usage)) + DONE
        await self.connection.send_events(last)
        await self.connection.end_events()

    async def _pump(self, place: int, stream: GenerationStream, scope: trio.CancelScope) -> None:
        """Send the chunks of one choice; its failure ends the others, between two writes."""
        if self.request.echo or self.answer.with_token_ids:
            ids = stream.prompt_token_ids
            await self._send([self.answer.echo_chunk(place, self.echoed[place], ids)])
        try:
            async for output in stream:
                if output.finish_reason is FinishReason.ERROR:
                    raise engine_error()
                await self._send(self.answer.chunks(place, output))
        except (EngineError, ApiError) as error:
            async with self._lock:
                self._error = self._error or to_api_error(error)
                scope.cancel("a choice failed")

    async def _send(self, chunks: list[JsonObject]) -> None:
        if chunks:
            async with self._lock:
                await self.connection.send_events(b"".join([data_frame(chunk) for chunk in chunks]))
