"""HTTP routes of OpenAI's older protocols: chat completions, completions, and their streams again.

Thin shells: bodies are validated, chunks built by pure modules; here is the waiting. A whole answer
is computed by its connection's task and ends with its client; a stream lives above its connection,
whose client is its first reader (`completions.completion`).
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from ...engine.errors import EngineError
from ...engine.messages import FinishReason
from ...runtime.frontend.generation import GenerationStream
from ...runtime.text.outputs import GenerationOutput, Usage
from ..application import Application, Call
from ..completions.completion import CompletionReader
from ..completions.cursor import POSITION_CHARACTERS_MAX
from ..completions.order import (
    CHAT_KIND,
    COMPLETIONS_KIND,
    CompletionOrder,
    Opened,
    echo_of,
)
from ..completions.service import ForeignCompletionReader, completion_not_found
from ..errors import engine_error, to_api_error
from ..http.connection import HttpConnection
from ..openai.chat import AnsweredPrompt
from ..openai.completion_requests import (
    CompletionsRequest,
    read_chat_request,
    read_completions_request,
)
from ..openai.completions import CompletionsAnswer, WholeChoice
from ..openai.sse import DONE, data_frame
from ..schema.fields import TextKind
from ..schema.tables import Field, Query
from .idempotency import computed_once
from .responses import RESUME_HEADERS

# What a stream is read on behind; see `completions.cursor`.
STREAM_QUERY = Query(
    {
        "starting_after": Field(
            TextKind(characters_max=POSITION_CHARACTERS_MAX),
            "Only events after the one of this id; all without.",
        )
    },
    headers=RESUME_HEADERS,
)


@computed_once
async def create_chat_completion(call: Call) -> None:
    """`POST /v1/chat/completions`. Raises `ApiError` before the answer has begun."""
    connection, application = call.connection, call.application
    application.check_accepting()
    body = await connection.read_json()
    model = application.generator.model_name
    request = read_chat_request(body, model=model, has_tools=application.has_tools)
    order = application.completions.order(request, call.principal, body)
    with connection.cancel_when_client_leaves():
        if request.options.stream:
            await _stream(connection, application, order)
            return
        async with _collected(order) as ((stream, _),):
            await connection.answer_json(200, order.chat_answer(request).completion(stream))


@computed_once
async def create_completion(call: Call) -> None:
    """`POST /v1/completions`. Raises `ApiError` before the answer has begun.

    All prompts of a batch run at the same time; when one fails, all of them do.
    """
    connection, application = call.connection, call.application
    application.check_accepting()
    body = await connection.read_json()
    request = read_completions_request(body, model=application.generator.model_name)
    order = application.completions.order(request, call.principal, body)
    answer = order.completions_answer(request)
    with connection.cancel_when_client_leaves():
        if not request.generates:
            await _answer_echo(connection, application, answer, request)
            return
        if request.options.stream:
            await _stream(connection, application, order)
            return
        async with _collected(order) as opened:
            usage = order.usage([stream for stream, _ in opened])
            whole = [_whole(order, *each) for each in opened]
            choices = [choice for choices in whole for choice in choices]
            await connection.answer_json(200, answer.whole(choices, usage))


def _whole(
    order: CompletionOrder, stream: GenerationStream, prompt: AnsweredPrompt
) -> list[WholeChoice]:
    """All choices of one prompt."""
    prompt.logprobs = stream.prompt_logprobs
    if not order.keeps_output:
        return [WholeChoice(prompt) for _ in stream.choices]
    return [WholeChoice(prompt, choice) for choice in stream.choices]


@asynccontextmanager
async def _collected(order: CompletionOrder) -> AsyncIterator[Opened]:
    """The streams of all prompts, at their ends. Raises `ApiError`."""
    async with AsyncExitStack() as stack:
        try:
            opened = await order.open(stack)
            for stream, _ in opened:
                await stream.collect()
        except EngineError as error:
            raise to_api_error(error, order.request.names) from error
        choices = [choice for stream, _ in opened for choice in stream.choices]
        if any(choice.finish_reason is FinishReason.ERROR for choice in choices):
            raise engine_error()  # without saying why
        yield opened


async def _stream(
    connection: HttpConnection, application: Application, order: CompletionOrder
) -> None:
    async with application.completions.open(order) as reader:
        await _send_chunks(connection, reader)


async def _send_chunks(
    connection: HttpConnection, reader: CompletionReader | ForeignCompletionReader
) -> None:
    """Send everything that a reader reads. A failure is an error event, which SDKs raise."""
    await connection.start_events()
    frames = b""
    while not reader.is_done:
        await connection.send_events(frames)
        await reader.wait_ready()
        frames = reader.take()
    await connection.end_events(frames)


async def resume_chat_completion(call: Call) -> None:
    """`GET /v1/chat/completions/{id}/stream`: the rest of a streamed chat completion.

    On whatever frontend it is. Raises `ApiError` before the answer has begun.
    """
    await _resume(call, CHAT_KIND, STREAM_QUERY.read(call.query, call.header))


async def resume_completion(call: Call) -> None:
    """`GET /v1/completions/{id}/stream`: the rest of a streamed completion.

    On whatever frontend it is. Raises `ApiError` before the answer has begun.
    """
    await _resume(call, COMPLETIONS_KIND, STREAM_QUERY.read(call.query, call.header))


async def _resume(call: Call, kind: str, query: dict[str, Any]) -> None:
    request = call.connection.request
    if not call.resource_id.startswith(f"{kind}_"):
        raise completion_not_found(call.resource_id)
    is_head = request is not None and request.method == "HEAD"  # which is sent nothing of it
    asked = (call.resource_id, call.principal, query["starting_after"])
    with call.connection.cancel_when_client_leaves():
        async with call.application.completions.read(*asked, is_last=not is_head) as reader:
            await _send_chunks(call.connection, reader)


async def _answer_echo(
    connection: HttpConnection,
    application: Application,
    answer: CompletionsAnswer,
    request: CompletionsRequest,
) -> None:
    """Echo the prompts with no token computed: `echo` with `max_tokens: 0`.

    A stream of that is whole at once, and is not kept.
    """
    choices, prompt_tokens, generator = list[WholeChoice](), 0, application.generator
    for prompt in request.prompts:
        ids = prompt
        if isinstance(ids, str):
            ids = await generator.tokenize(ids, add_special_tokens=request.add_special_tokens)
        echoed = AnsweredPrompt(ids, await echo_of(generator, prompt))
        choices += [WholeChoice(echoed)] * request.sampling.n
        prompt_tokens += len(ids)
    usage = Usage(prompt_tokens, 0)
    if not request.options.stream:
        await connection.answer_json(200, answer.whole(choices, usage))
        return
    chunks = []
    for index, choice in enumerate(choices):
        opening = answer.opening(index, choice.prompt)
        chunks += [] if opening is None else [opening]
        chunks += answer.chunks(
            GenerationOutput("", [], 0, index=index, finish_reason=FinishReason.LENGTH)
        )
    if request.options.include_usage:
        chunks.append(answer.usage_chunk(usage))
    await connection.start_events()
    await connection.end_events(b"".join(map(data_frame, chunks)) + DONE)
