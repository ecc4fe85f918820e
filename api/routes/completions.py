"""HTTP routes of OpenAI's older protocols: `POST /v1/chat/completions`, `POST /v1/completions`.

Thin shells: bodies are validated, chunks built by pure modules; here is the waiting. A client that
leaves while it is answered cancels its generation.
"""

import time
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import attrs
import trio

from ...engine.errors import EngineError
from ...engine.messages import FinishReason
from ...nurseries.tasks.background import start_background_task_soon
from ...runtime.frontend.generation import GenerationStream
from ...runtime.text.outputs import GenerationChoice, GenerationOutput, Usage
from ...runtime.text.prompts import Prompt
from ..application import Application, Call
from ..errors import ApiError, engine_error, internal_error, to_api_error
from ..http.connection import HttpConnection
from ..openai.chat import ChatAnswer, ChatToolCalls
from ..openai.completion_requests import (
    ChatRequest,
    CompletionOptions,
    CompletionsRequest,
    TextOrIds,
    read_chat_request,
    read_completions_request,
)
from ..openai.completions import CompletionsAnswer, WholeChoice, no_answer, usage_of
from ..openai.logprobs import LogprobFormatter, make_formatter
from ..openai.response_events import DONE, data_frame
from ..schema.fields import JsonObject
from .idempotency import computed_once


@computed_once
async def create_chat_completion(call: Call) -> None:
    """`POST /v1/chat/completions`. Raises `ApiError` before the answer has begun."""
    connection, application = call.connection, call.application
    application.check_accepting()
    body = await connection.read_json()
    model = application.generator.model_name
    request = read_chat_request(body, model=model, has_tools=application.has_tools)
    completion_id = application.ids.draw("chatcmpl")
    tools = request.tools
    calls = ChatToolCalls(completion_id, tools.choice.name is not None, tools.calls_max)
    answer = ChatAnswer(
        completion_id=completion_id,
        created=int(time.time()),
        model=model,
        with_token_ids=request.options.with_token_ids,
        formatter=_formatter(application, request.sampling.logprobs, request.options),
        prompt_formatter=_formatter(application, request.sampling.prompt_logprobs, request.options),
        calls=calls if tools.is_on else None,
    )
    try:
        with connection.cancel_when_client_leaves():
            async with _generate(call, request, request.prompt, completion_id) as stream:
                if request.options.stream:
                    await _stream_chat(connection, answer, request, stream)
                    return
                await stream.collect()
            _check_choices(stream)
            await connection.answer_json(200, answer.completion(stream))
    except EngineError as error:
        raise to_api_error(error, request.names) from error


def _generate(
    call: Call, request: ChatRequest | CompletionsRequest, prompt: Prompt, request_id: str
) -> AbstractAsyncContextManager[GenerationStream]:
    options = request.options
    return call.application.generator.generate(
        prompt,
        request.sampling,
        request_id=request_id,
        principal=call.principal,
        cache_salt=options.runtime.cache_salt,
        priority=options.runtime.priority,
        inexact_ok=options.runtime.inexact_ok,
        streaming=options.stream,
        deadline_s=options.runtime.deadline_s,
        merge_s=call.application.settings.merge_s(streaming=options.stream),
    )


def _formatter(
    application: Application, top: int | None, options: CompletionOptions
) -> LogprobFormatter | None:
    return make_formatter(application.generator.token_bytes, top, by_id=options.names_token_ids)


def _frames(chunks: Iterable[JsonObject]) -> bytes:
    return b"".join([data_frame(chunk) for chunk in chunks])


def _check_choices(stream: GenerationStream) -> None:
    """Raises `ApiError` if the engine ended one without saying why."""
    if any(choice.finish_reason is FinishReason.ERROR for choice in stream.choices):
        raise engine_error()


async def _stream_chat(
    connection: HttpConnection, answer: ChatAnswer, request: ChatRequest, stream: GenerationStream
) -> None:
    """Send chunks as tokens come. A failure within becomes an error event, which SDKs raise."""
    await connection.start_events()
    ids = stream.prompt_token_ids
    openings = [answer.opening(choice.index, ids) for choice in stream.choices]
    await connection.send_events(_frames(openings))
    try:
        async for output in stream:
            if output.finish_reason is FinishReason.ERROR:
                await connection.end_events(data_frame(engine_error().body()))
                return
            await connection.send_events(_frames(answer.chunks(output)))
    except EngineError as error:
        await connection.end_events(data_frame(to_api_error(error).body()))
        return
    last = data_frame(answer.usage_chunk(stream.usage)) if request.options.include_usage else b""
    await connection.end_events(last + DONE)


@computed_once
async def create_completion(call: Call) -> None:
    """`POST /v1/completions`. Raises `ApiError` before the answer has begun.

    All prompts of a batch run at the same time; when one fails, all of them do.
    """
    connection, application = call.connection, call.application
    application.check_accepting()
    body = await connection.read_json()
    request = read_completions_request(body, model=application.generator.model_name)
    answer = CompletionsAnswer(
        completion_id=application.ids.draw("cmpl"),
        created=int(time.time()),
        model=application.generator.model_name,
        with_token_ids=request.options.with_token_ids,
        formatter=_formatter(application, request.sampling.logprobs, request.options),
        echoes_logprobs=request.echoes_logprobs,
        prompt_formatter=_formatter(
            application,
            request.sampling.prompt_logprobs if request.with_prompt_logprobs else None,
            request.options,
        ),
    )
    try:
        with connection.cancel_when_client_leaves():
            if not request.generates:
                await _answer_echo(connection, application, answer, request)
                return
            async with AsyncExitStack() as stack:
                batch = _Batch(connection, answer, request)
                for place, prompt in enumerate(request.prompts):
                    tokens = await _prompt_of(application, request, prompt)
                    opening = _generate(call, request, tokens, f"{answer.completion_id}-{place}")
                    batch.streams.append(await stack.enter_async_context(opening))
                    batch.echoed.append(await _echo_of(application, request, prompt))
                if request.options.stream:
                    await batch.stream()
                    return
                choices = await batch.collect()
            await connection.answer_json(200, answer.whole(choices, batch.usage))
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
    if not request.echo:
        return ""
    return prompt if isinstance(prompt, str) else await application.generator.detokenize(prompt)


async def _answer_echo(
    connection: HttpConnection,
    application: Application,
    answer: CompletionsAnswer,
    request: CompletionsRequest,
) -> None:
    """Echo the prompts with no token computed: `echo` with `max_tokens: 0`."""
    choices, prompt_tokens = [], 0
    for prompt in request.prompts:
        ids = prompt
        if isinstance(ids, str):
            ids = await application.generator.tokenize(
                ids, add_special_tokens=request.add_special_tokens
            )
        echoed = await _echo_of(application, request, prompt)
        choices += [WholeChoice(prompt_token_ids=ids, echoed=echoed)] * request.sampling.n
        prompt_tokens += len(ids)
    usage = Usage(prompt_tokens, 0)
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
    await connection.end_events(_frames(chunks) + DONE)


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

    @property
    def usage(self) -> Usage:
        """Of all prompts; a token that is thrown away is none."""
        usage = usage_of(stream.usage for stream in self.streams)
        if not self.request.keeps_output:
            return attrs.evolve(usage, output_tokens=0)
        return usage

    async def collect(self) -> list[WholeChoice]:
        """Whole choices, in order. Raises what a stream ended with."""
        choices = []
        for stream, echoed in zip(self.streams, self.echoed, strict=True):
            await stream.collect()
            _check_choices(stream)
            choices += [self._whole(stream, choice, echoed) for choice in stream.choices]
        return choices

    def _whole(
        self, stream: GenerationStream, choice: GenerationChoice, echoed: str
    ) -> WholeChoice:
        return WholeChoice(
            prompt_token_ids=stream.prompt_token_ids,
            echoed=echoed,
            prompt_logprobs=stream.prompt_logprobs,
            answer=choice if self.request.keeps_output else no_answer(),
        )

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
        last = DONE
        if self._error is not None:
            last = data_frame(self._error.body())
        elif self.request.options.include_usage:
            last = data_frame(self.answer.usage_chunk(self.usage)) + DONE
        await self.connection.end_events(last)

    async def _pump(self, place: int, stream: GenerationStream, scope: trio.CancelScope) -> None:
        """Send the chunks of one prompt's choices; a failure ends all, between two writes."""
        first = place * len(stream.choices)
        # Characters of each choice that were said.
        said = [len(self.echoed[place])] * len(stream.choices)
        scored = self.request.echoes_logprobs
        try:
            if not scored:
                await self._send(self._echoes(place, stream))
            async for output in stream:
                if scored:  # they have come with the first token
                    await self._send(self._echoes(place, stream))
                    scored = False
                if output.finish_reason is FinishReason.ERROR:
                    raise engine_error()
                if not self.request.keeps_output:
                    output = _nothing_of(output)
                offset = said[output.index]
                said[output.index] += len(output.text)
                await self._send(self.answer.chunks(first + output.index, output, offset))
        except (EngineError, ApiError) as error:
            async with self._lock:
                self._error = self._error or to_api_error(error)
                scope.cancel("a choice failed")

    def _echoes(self, place: int, stream: GenerationStream) -> list[JsonObject]:
        """The prompt, before each of its choices, where it is asked for."""
        if not (self.request.echo or self.answer.with_token_ids):
            return []
        first, ids = place * len(stream.choices), stream.prompt_token_ids
        return [
            self.answer.echo_chunk(first + index, self.echoed[place], ids, stream.prompt_logprobs)
            for index in range(len(stream.choices))
        ]

    async def _send(self, chunks: list[JsonObject]) -> None:
        if chunks:
            async with self._lock:
                await self.connection.send_events(_frames(chunks))


def _nothing_of(output: GenerationOutput) -> GenerationOutput:
    """The end alone, of a token that only the prompt's logprobs needed."""
    reason = None if output.finish_reason is None else FinishReason.LENGTH
    return GenerationOutput("", [], 0, index=output.index, finish_reason=reason)
