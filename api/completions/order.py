"""Order of one chat completion or completion: its client's request, put to the runtime.

One stream of the runtime for each prompt; their requests are named after the completion.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Protocol

import attrs
import msgspec

from ...runtime.frontend.adoption import AdoptedStream
from ...runtime.frontend.generation import GenerationStream, Generator
from ...runtime.journal.journal import AdmissionNote
from ...runtime.text.outputs import Usage
from ...runtime.text.prompts import Prompt
from ..openai.chat import AnsweredPrompt, ChatAnswer, ChatToolCalls
from ..openai.completion_requests import ChatRequest, CompletionsRequest, TextOrIds
from ..openai.completions import CompletionsAnswer, usage_of
from ..openai.logprobs import LogprobFormatter, make_formatter
from ..schema.fields import JsonObject

SURFACE = "completions"
CHAT_KIND, COMPLETIONS_KIND = "chatcmpl", "cmpl"


Opened = list[tuple[GenerationStream, AnsweredPrompt]]


class Streams(Protocol):
    """Opens the streams of an order."""

    async def open(self, stack: AsyncExitStack) -> Opened | None:
        """One for each prompt, until the stack is left. None: they are lost."""


@attrs.define(eq=False, kw_only=True)
class CompletionOrder:
    """One client's request; `created` is Unix seconds. With `values`, the body as it came, its
    streams are written down for a successor of this frontend.
    """

    completion_id: str
    created: int
    principal: str
    request: ChatRequest | CompletionsRequest
    generator: Generator
    # Tokens may wait for more of them so long.
    merge_s: float = 0.0
    values: JsonObject | None = None

    @property
    def names(self) -> list[str]:
        """Of the requests for its prompts."""
        if isinstance(self.request, ChatRequest):
            return [self.completion_id]
        return [f"{self.completion_id}-{place}" for place in range(len(self.request.prompts))]

    @property
    def choice_count(self) -> int:
        """Of all prompts together."""
        return len(self.names) * self.request.sampling.n

    @property
    def keeps_output(self) -> bool:
        """Whether its tokens are wanted, and not the prompts' logprobs alone."""
        return isinstance(self.request, ChatRequest) or self.request.keeps_output

    @property
    def echoes_logprobs(self) -> bool:
        """Whether a choice begins with what is known of its prompt by the first token."""
        return isinstance(self.request, CompletionsRequest) and self.request.echoes_logprobs

    def answer(self) -> ChatAnswer | CompletionsAnswer:
        """What makes its chunks, or its whole answer."""
        if isinstance(self.request, ChatRequest):
            return self.chat_answer(self.request)
        return self.completions_answer(self.request)

    def chat_answer(self, request: ChatRequest) -> ChatAnswer:
        """The same of a chat."""
        tools = request.tools
        calls = ChatToolCalls(self.completion_id, tools.choice.name is not None, tools.calls_max)
        return ChatAnswer(
            completion_id=self.completion_id,
            created=self.created,
            model=self.generator.model_name,
            with_token_ids=request.options.with_token_ids,
            formatter=self._formatter(request.sampling.logprobs),
            prompt_formatter=self._formatter(request.sampling.prompt_logprobs),
            calls=calls if tools.is_on else None,
        )

    def completions_answer(self, request: CompletionsRequest) -> CompletionsAnswer:
        """The same of completions."""
        top = request.sampling.prompt_logprobs if request.with_prompt_logprobs else None
        return CompletionsAnswer(
            completion_id=self.completion_id,
            created=self.created,
            model=self.generator.model_name,
            with_token_ids=request.options.with_token_ids,
            formatter=self._formatter(request.sampling.logprobs),
            echoes_logprobs=request.echoes_logprobs,
            prompt_formatter=self._formatter(top),
        )

    def _formatter(self, top: int | None) -> LogprobFormatter | None:
        by_id = self.request.options.names_token_ids
        return make_formatter(self.generator.token_bytes, top, by_id=by_id)

    # ---- its streams

    async def open(self, stack: AsyncExitStack) -> Opened:
        """Ask the runtime for all of them. Raises as `Generator.generate`."""
        request, opened = self.request, Opened()
        for place, name in enumerate(self.names):
            prompt = await self._prompt(request, place)
            stream = await stack.enter_async_context(self._generate(prompt, name, place))
            echoed = await self.echoed(place)
            opened.append((stream, AnsweredPrompt(stream.prompt_token_ids, echoed)))
        return opened

    def _generate(
        self, prompt: Prompt, name: str, place: int
    ) -> AbstractAsyncContextManager[GenerationStream]:
        options = self.request.options
        return self.generator.generate(
            prompt,
            self.request.sampling,
            request_id=name,
            principal=self.principal,
            cache_salt=options.runtime.cache_salt,
            priority=options.runtime.priority,
            inexact_ok=options.runtime.inexact_ok,
            streaming=options.stream,
            deadline_s=options.runtime.deadline_s,
            merge_s=self.merge_s,
            note=None if self.values is None else self._note(name, place, self.values),
        )

    def _note(self, name: str, place: int, values: JsonObject) -> AdmissionNote:
        """For the journal; the first one has the body."""
        return AdmissionNote(
            name=name,
            surface=SURFACE,
            body=b"" if place else msgspec.json.encode(values),
            created_at=self.created,
            is_resumable=True,
        )

    async def _prompt(self, request: ChatRequest | CompletionsRequest, place: int) -> Prompt:
        """As the runtime takes it: it adds special tokens to every text."""
        if isinstance(request, ChatRequest):
            return request.prompt
        prompt = request.prompts[place]
        if request.add_special_tokens or not isinstance(prompt, str):
            return prompt
        return await self.generator.tokenize(prompt, add_special_tokens=False)

    async def echoed(self, place: int) -> str:
        """The text of a prompt, if it is to be echoed."""
        request = self.request
        if isinstance(request, ChatRequest) or not request.echo:
            return ""
        return await echo_of(self.generator, request.prompts[place])

    def usage(self, streams: Sequence[GenerationStream]) -> Usage:
        """Of all prompts; a token that is thrown away is none."""
        usage = usage_of([stream.usage for stream in streams])
        return usage if self.keeps_output else attrs.evolve(usage, output_tokens=0)


async def echo_of(generator: Generator, prompt: TextOrIds) -> str:
    """The text of a prompt."""
    return prompt if isinstance(prompt, str) else await generator.detokenize(prompt)


@attrs.frozen
class AdoptedOrder:
    """The streams of an order that a frontend before this one has asked for."""

    order: CompletionOrder
    streams: Sequence[AdoptedStream]
    # It must have ended at this time (trio's clock).
    deadline: float = math.inf

    async def open(self, stack: AsyncExitStack) -> Opened | None:
        """They go on until the stack is left. None: two lives have died of one of them."""
        if any(adopted.generation is None for adopted in self.streams):
            for adopted in self.streams:
                adopted.close()
            return None
        opened = Opened()
        for place, adopted in enumerate(self.streams):
            stream = await stack.enter_async_context(adopted.open())
            stream.deadline = self.deadline
            echoed = await self.order.echoed(place)
            opened.append((stream, AnsweredPrompt(stream.prompt_token_ids, echoed)))
        return opened
