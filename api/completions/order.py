"""Order of one chat completion or completion: its client's request, put to the runtime.

One stream of the runtime for each prompt; their requests are named after the completion.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import attrs
import msgspec

from ...engine.request_options import RequestOptions
from ...engine.sampling_params import SamplingParams
from ...runtime.frontend.generation import GenerationStream
from ...runtime.journal.journal import AdmissionNote
from ...runtime.text.answer_format import AnswerFormat
from ...runtime.text.outputs import Usage
from ...runtime.text.prompts import Prompt
from ..anthropic.message_answer import MessageAnswer
from ..anthropic.messages_request import MESSAGES_KIND, MessagesRequest, read_messages_request
from ..openai.chat import AnsweredPrompt, ChatAnswer, ChatMessages
from ..openai.chat_requests import ChatRequest, read_chat_request
from ..openai.completion_requests import (
    CHAT_KIND,
    COMPLETIONS_KIND,
    CompletionsRequest,
    read_completions_request,
)
from ..openai.completions import CompletionsAnswer, usage_of
from ..openai.logprobs import LogprobFormatter, make_formatter
from ..openai.tool_use import with_form_behind
from ..schema.fields import JsonObject
from ..streams.adoption import Adoption, KeptRequest
from ..streams.served_stream import Order
from .record import ChoiceRecord

SURFACE = "completions"


def is_completion(name: str) -> bool:
    """Whether this is the id of a completion, and not of a response."""
    return name.partition("_")[0] in (CHAT_KIND, COMPLETIONS_KIND, MESSAGES_KIND)


def request_again(
    completion_id: str, values: JsonObject, *, model: str, answer_format: AnswerFormat
) -> ChatRequest | CompletionsRequest:
    """The request of a completion, read from its body as it was. Raises `ApiError`."""
    kind = completion_id.partition("_")[0]
    if kind == COMPLETIONS_KIND:
        return read_completions_request(values, model=model)
    read = read_messages_request if kind == MESSAGES_KIND else read_chat_request
    return read(values, model=model, answer_format=answer_format)


# A prompt of which nothing is computed has no stream.
Opened = list[tuple[GenerationStream | None, AnsweredPrompt]]


@attrs.define(eq=False, kw_only=True)
class CompletionOrder(Order):
    """Order of a completion, whose body came as `values`; `created` is Unix seconds."""

    created: int
    request: ChatRequest | CompletionsRequest
    values: JsonObject
    # Options of the request, where the server has not changed them.
    options: RequestOptions = attrs.field(
        default=attrs.Factory(lambda self: self.request.options.runtime, takes_self=True)
    )

    @property
    def keep_s(self) -> float:
        return self.request.options.keep_s

    def goes_on_s(self, resume_keep_s: float) -> float:
        """How long it goes on without readers; with a key, for as long as it takes."""
        return math.inf if self.is_keyed else self.keep_s

    @property
    def is_streamed(self) -> bool:
        return self.request.options.stream

    @property
    def is_read_again(self) -> bool:
        return self.is_streamed

    @property
    def is_kept(self) -> bool:
        """Whether its client may come back to read on, so that frames have ids."""
        return self.is_keyed or self.keep_s > 0

    @property
    def names(self) -> list[str]:
        """Names of the requests for its prompts."""
        if isinstance(self.request, ChatRequest):
            return [self.stream_id]
        return [f"{self.stream_id}-{place}" for place in range(len(self.request.prompts))]

    @property
    def choice_count(self) -> int:
        """Count of choices of all prompts together."""
        return len(self.names) * self.request.sampling.n

    def answer(
        self, prompt: AnsweredPrompt | None = None
    ) -> ChatAnswer | CompletionsAnswer | MessageAnswer:
        """Maker of its chunks, or of its whole answer; a chat has one prompt."""
        match self.request:
            case MessagesRequest() as request:
                is_open = prompt is not None and self._is_opened(request, prompt)
                name, model = self.stream_id, self.generator.model_name
                return MessageAnswer(name, model, request, is_open=is_open)
            case ChatRequest() as request:
                return self.chat_answer(request, prompt)
            case CompletionsRequest() as request:
                return self.completions_answer(request)

    def _is_opened(self, request: ChatRequest, prompt: AnsweredPrompt) -> bool:
        """Whether an answer begins inside of the model's reasoning."""
        answers = request.tools.answer_format
        return answers.is_opened(prompt.token_ids, self.generator.token_bytes)

    def reasoning_tokens(self, choices: Sequence[ChoiceRecord]) -> int | None:
        """Reasoning tokens of all choices together; None where reasoning is not parted off."""
        request = self.request
        if not isinstance(request, ChatRequest) or not request.tools.answer_format.parts_reasoning:
            return None
        count = 0
        for choice in choices:
            parser = request.tools.parser(is_open=self._is_opened(request, choice.prompt))
            assert parser is not None, "it parts reasoning off"
            for text in choice.texts[: len(choice.token_ids)]:
                parser.push(text)
            count += parser.reasoning_tokens
        return count

    def chat_answer(self, request: ChatRequest, prompt: AnsweredPrompt | None) -> ChatAnswer:
        """The same of a chat."""
        messages, tools = None, request.tools
        if tools.is_on or tools.answer_format.parts_reasoning:
            messages = ChatMessages(
                self.stream_id,
                tools,
                is_open=prompt is not None and self._is_opened(request, prompt),
                shows_reasoning=request.with_reasoning and tools.answer_format.parts_reasoning,
            )
        top = request.sampling.prompt_logprobs
        return ChatAnswer(**self._identity(prompt_logprobs=top), messages=messages)

    def completions_answer(self, request: CompletionsRequest) -> CompletionsAnswer:
        """The same of completions."""
        top = request.sampling.prompt_logprobs if request.with_prompt_logprobs else None
        identity = self._identity(prompt_logprobs=top)
        return CompletionsAnswer(**identity, echoes_logprobs=request.echoes_logprobs)

    def _identity(self, *, prompt_logprobs: int | None) -> dict[str, Any]:
        """The fields of either answer that are the same."""
        request = self.request
        return {
            "completion_id": self.stream_id,
            "created": self.created,
            "model": self.generator.model_name,
            "with_token_ids": request.options.token_ids,
            "has_usage": request.options.include_usage,
            "formatter": self._formatter(request.sampling.logprobs),
            "prompt_formatter": self._formatter(prompt_logprobs),
        }

    def _formatter(self, top: int | None) -> LogprobFormatter | None:
        by_id = self.request.options.names_token_ids
        return make_formatter(self.generator.token_bytes, top, by_id=by_id)

    # ---- its streams

    async def open(self, stack: AsyncExitStack) -> Opened:
        """Ask the runtime for all of them. Raises as `Generator.generate`."""
        request, opened = self.request, Opened()
        for place, name in enumerate(self.names):
            prompt = await self._prompt(request, place)
            stream, sampling = None, request.sampling
            if isinstance(request, ChatRequest):
                is_call, tools = request.options.form_field == "tools", request.tools
                asked = await with_form_behind(
                    self.generator,
                    prompt,
                    sampling,
                    tools,
                    is_call=is_call,
                    principal=self.principal,
                )
                prompt, sampling = asked
            if request.generates:
                opening = self._generate(prompt, sampling, name, place)
                stream = await stack.enter_async_context(opening)
            ids = await self._ids_of(prompt) if stream is None else stream.prompt_token_ids
            opened.append((stream, AnsweredPrompt(ids, await self.echoed(place))))
        return opened

    async def reopen(self, stack: AsyncExitStack, adoption: Adoption) -> Opened:
        """Go on with all streams until the stack is left."""
        opened = Opened()
        for place, part in enumerate(adoption.parts):
            stream = await stack.enter_async_context(part.open())
            stream.deadline = adoption.admitted_at + self.request.options.runtime.deadline_s
            opened.append(
                (stream, AnsweredPrompt(stream.prompt_token_ids, await self.echoed(place)))
            )
        return opened

    def _generate(
        self, prompt: Prompt, sampling: SamplingParams, name: str, place: int
    ) -> AbstractAsyncContextManager[GenerationStream]:
        return self.generator.generate(
            prompt,
            sampling,
            self.options,
            request_id=name,
            principal=self.principal,
            streaming=self.is_streamed,
            note=self._note(name, place) if self.is_noted else None,
        )

    def _note(self, name: str, place: int) -> AdmissionNote:
        """Note for the journal; the first one has the body."""
        kept = KeptRequest(values=self.values, is_keyed=self.is_keyed)
        return AdmissionNote(
            name=name,
            surface=SURFACE,
            body=b"" if place else msgspec.json.encode(kept),
            created_at=self.created,
            is_resumable=True,
        )

    async def _prompt(self, request: ChatRequest | CompletionsRequest, place: int) -> Prompt:
        """Prompt for the runtime, which adds special tokens to every text."""
        if isinstance(request, ChatRequest):
            return request.prompt
        prompt = request.prompts[place]
        if request.add_special_tokens or not isinstance(prompt, str):
            return prompt
        return await self.generator.tokenize(
            prompt, add_special_tokens=False, principal=self.principal
        )

    async def _ids_of(self, prompt: Prompt) -> list[int]:
        """Ids of a prompt that no engine is asked about, as the runtime would make them."""
        if isinstance(prompt, list):
            return prompt
        assert isinstance(prompt, str)
        return await self.generator.tokenize(
            prompt, add_special_tokens=True, principal=self.principal
        )

    async def echoed(self, place: int) -> str:
        """The text of a prompt, if it is to be echoed."""
        request = self.request
        if isinstance(request, ChatRequest) or not request.echo:
            return ""
        prompt = request.prompts[place]
        if isinstance(prompt, str):
            return prompt
        return await self.generator.detokenize(prompt, principal=self.principal)

    def usage(self, streams: Sequence[GenerationStream]) -> Usage:
        """Usage of all prompts, without a token that is thrown away."""
        usage = streams[0].usage if len(streams) == 1 else usage_of([s.usage for s in streams])
        return usage if self.request.keeps_output else attrs.evolve(usage, output_tokens=0)
