"""Fakes of this room: a `Generator` that follows scripts, and streams between client and server.

The streams it gives out are the real `GenerationStream`, over the real `OutputCollector`: only
engines and tokenizer are made up. Delays are trio's, so that MockClock decides what they cost.
"""

from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio
import trio.testing

from triolet.api.application import Application
from triolet.api.serving.connection import run_connection
from triolet.api.settings import ServeSettings
from triolet.engine.errors import InvalidParameter
from triolet.engine.messages import EngineStatistics, FinishReason, RequestEvent
from triolet.engine.request_options import NO_OPTIONS, RequestOptions
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.doubles.clients import Answer as Answer
from triolet.fuzz.doubles.clients import HttpClient as HttpClient
from triolet.fuzz.doubles.clients import encode as encode
from triolet.nurseries.tasks.service import open_service
from triolet.runtime.control.calls import EngineState
from triolet.runtime.frontend.generation import GenerationStream
from triolet.runtime.frontend.health import FrontendStatistics, Health, RuntimeStatistics
from triolet.runtime.frontend.latencies import Latencies
from triolet.runtime.frontend.output_collector import OutputCollector
from triolet.runtime.journal.journal import AdmissionNote
from triolet.runtime.messages import EngineHealth
from triolet.runtime.text.outputs import GenerationOutput, Logprobs
from triolet.runtime.text.prompts import ChatPrompt, Prompt

PROMPT_TOKENS = [7, 8, 9]
VOCABULARY = 0x10FFFF


@attrs.frozen
class Say:
    """One piece: `text`, of `tokens` tokens, `after_s` seconds after the one before."""

    text: str
    tokens: int = 1
    after_s: float = 0.0
    events: tuple[RequestEvent, ...] = ()


@attrs.frozen
class Fail:
    """The stream ends with this error."""

    error: Exception
    after_s: float = 0.0


Script = Sequence[Say | Fail]
HELLO: Script = [Say("Hel"), Say("lo"), Say(" world")]


@attrs.frozen
class Call:
    """What one `generate` was asked."""

    prompt: Prompt
    params: SamplingParams
    options: RequestOptions
    request_id: str
    principal: str = ""
    streaming: bool = True
    note: AdmissionNote | None = None


def make_logprobs(token_ids: Sequence[int], alternatives: int) -> Logprobs:
    """Each token is the most likely one, at -0.25; the next ids follow, each 0.25 less."""
    width = 1 + alternatives
    columns = [0, *range(alternatives)]
    return Logprobs(
        width,
        array("i", [token_id + column for token_id in token_ids for column in columns]),
        array("f", [-0.25 * (1 + column) for _ in token_ids for column in columns]),
        array("i", [1] * len(token_ids)),
    )


class NoText:
    """Decodes nothing: fakes put outputs with their text."""

    def handle_tokens(self, token_ids: list[int]) -> list[str]:
        return [""] * len(token_ids)


def make_collector(request_id: str = "r", only_when_finished: bool = False) -> OutputCollector:
    return OutputCollector(request_id, NoText(), only_when_finished)


@attrs.define(eq=False)
class FakeFlow:
    """One choice, without an engine: notes what its stream says."""

    collector: OutputCollector
    generator: "FakeGenerator"

    def handle_consumed(self, token_count: int) -> float:
        self.generator.consumed.append(token_count)
        return token_count + 1  # every piece

    @property
    def client_credit(self) -> int | None:
        credit = self.generator.calls[-1].options.credit
        return None if credit is None else credit + sum(self.generator.granted)

    def handle_granted(self, tokens: int) -> None:
        self.generator.granted.append(tokens)

    def end(self, reason: FinishReason) -> None:
        pass

    def close(self) -> None:
        pass


@attrs.define(eq=False)
class FakeGenerator:
    """Follows `scripts` by the text of the last user message, else `script`.

    `gate`, when set, holds every piece back until the test opens it. A request is taken
    `opens_after_s` after it came.
    """

    script: Script = attrs.field(factory=lambda: list(HELLO))
    scripts: Mapping[str, Script] = attrs.field(factory=dict)
    finish_reason: FinishReason = FinishReason.STOP
    model_name: str = "toy"
    max_model_len: int = 128
    max_logprobs: int = 20
    chat_template: str | None = None
    prompt_tokens: Sequence[int] = PROMPT_TOKENS
    model_created_at: int = 5
    sampling_defaults: SamplingParams = attrs.field(factory=SamplingParams)
    refuse: Exception | None = None
    is_ready: bool = True
    opens_after_s: float = 0.0
    latencies: Latencies = attrs.field(factory=Latencies)
    calls: list[Call] = attrs.field(factory=list, init=False)
    active: dict[str, GenerationStream] = attrs.field(factory=dict, init=False)
    aborted: list[str] = attrs.field(factory=list, init=False)
    failed: list[str] = attrs.field(factory=list, init=False)
    consumed: list[int] = attrs.field(factory=list, init=False)
    granted: list[int] = attrs.field(factory=list, init=False)

    @asynccontextmanager
    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        *,
        request_id: str | None = None,
        **more: Any,
    ) -> AsyncIterator[GenerationStream]:
        await trio.sleep(self.opens_after_s)
        if self.refuse is not None:
            raise self.refuse
        assert request_id is not None
        params = params or SamplingParams()
        self.calls.append(Call(prompt, params, options or NO_OPTIONS, request_id, **more))
        streaming = self.calls[-1].streaming
        flows = [FakeFlow(make_collector(request_id, not streaming), self) for _ in range(params.n)]
        if params.prompt_logprobs is not None:
            logprobs = make_logprobs(PROMPT_TOKENS[1:], params.prompt_logprobs)
            flows[0].collector.prompt_logprobs = logprobs
        stream = self.active[request_id] = GenerationStream(
            request_id, list(self.prompt_tokens), flows
        )
        try:
            # As the runtime does: the one who fills is not a child of the one who consumes.
            async with AsyncExitStack() as stack:
                nursery = await stack.enter_async_context(trio.open_nursery())
                for flow in flows:
                    script = self._script_for(prompt)
                    nursery.start_soon(self._fill, request_id, flow.collector, script, params)
                try:
                    yield stream
                finally:
                    nursery.cancel_scope.cancel("the stream was left")
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
        finally:
            del self.active[request_id]
            if stream.finish_reason is None and request_id not in self.failed:
                self.aborted.append(request_id)

    def _script_for(self, prompt: Prompt) -> Script:
        if isinstance(prompt, ChatPrompt):
            return self.scripts.get(prompt.messages[-1]["content"], self.script)
        return self.scripts.get(prompt, self.script) if isinstance(prompt, str) else self.script

    async def _fill(
        self, request_id: str, collector: OutputCollector, script: Script, params: SamplingParams
    ) -> None:
        count = 0
        limit = params.max_tokens or 10**9
        for index, item in enumerate(script):
            if item.after_s:
                await trio.sleep(item.after_s)
            else:
                await trio.lowlevel.checkpoint()
            if isinstance(item, Fail):
                self.failed.append(request_id)
                collector.fail(item.error)
                return
            count += item.tokens
            reason = None
            if count >= limit:
                reason = FinishReason.LENGTH
            elif index == len(script) - 1:
                reason = self.finish_reason
            ids = list(range(count - item.tokens, count))
            logprobs = None if params.logprobs is None else make_logprobs(ids, params.logprobs)
            collector.token_ids.extend(ids)
            output = GenerationOutput(item.text, ids, count, finish_reason=reason)
            output.events, output.logprobs = item.events, logprobs
            collector.put(output)
            if reason is not None:
                return

    async def tokenize(
        self, prompt: str | ChatPrompt, *, add_special_tokens: bool, principal: str = ""
    ) -> list[int]:
        """A token for each character, and a 1 before them that is special."""
        await trio.lowlevel.checkpoint()
        if isinstance(prompt, ChatPrompt):
            prompt = "".join(message["content"] for message in prompt.messages)
        return [1] * add_special_tokens + [ord(character) for character in prompt]

    async def detokenize(self, token_ids: Sequence[int], *, principal: str = "") -> str:
        await trio.lowlevel.checkpoint()
        if max(token_ids, default=0) > VOCABULARY:
            raise InvalidParameter("prompt", f"must have token ids from 0 to {VOCABULARY}")
        return "".join(chr(token_id) for token_id in token_ids)

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        return [chr(token_id).encode() for token_id in token_ids]

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        return [chr(token_id) for token_id in token_ids]

    def tokenizer_info(self) -> dict[str, object]:
        return {"eos_token": "</s>", "chat_template": self.chat_template}

    def health(self) -> Health:
        state = EngineState.READY if self.is_ready else EngineState.STARTING
        reasons = [] if self.is_ready else ["engine 0 is starting"]
        engine = EngineHealth(0, 1, state, "".join(reasons), restarts=2)
        return Health(True, self.is_ready, [engine], reasons)

    def statistics(self) -> RuntimeStatistics:
        running = len(self.active)
        engine = EngineStatistics(
            step=5,
            running=running,
            kv_blocks=512,
            kv_blocks_free=512,
            block_tokens=16,
            output_tokens=42,
            aborts_after=[4, 0, 1],
        )
        frontend = FrontendStatistics(
            requests_total=len(self.calls),
            outputs_refused_total={"old attempt": 2},
            link_mishaps_total={"gap": 3},
            latencies=self.latencies,
        )
        return RuntimeStatistics(engines={0: engine}, frontend=frontend)


def make_application(generator: FakeGenerator | None = None, **settings: Any) -> Application:
    return Application(generator or FakeGenerator(), ServeSettings(**settings))


async def read_all(stream: trio.abc.Stream) -> bytes:
    """All that comes until the other side closes or resets."""
    received = b""
    while True:
        try:
            data = await stream.receive_some(4096)
        except trio.BrokenResourceError:
            return received
        if not data:
            return received
        received += data


@asynccontextmanager
async def open_connection(application: Application) -> AsyncIterator[trio.abc.Stream]:
    """The client's end of a memory connection that `application` serves."""
    client, server = trio.testing.memory_stream_pair()
    async with open_responses(application), trio.open_nursery() as nursery:
        nursery.start_soon(partial(run_connection, server, application))
        try:
            yield client
        finally:
            await client.aclose()
            nursery.cancel_scope.cancel("the test is over")


@asynccontextmanager
async def open_responses(application: Application) -> AsyncIterator[None]:
    """What `serve_connections` opens around all connections; once, if blocks of this nest."""
    if application.streams.is_open:
        yield
        return
    async with open_service(application.streams.run, name="responses"):
        yield


@asynccontextmanager
async def open_client(application: Application) -> AsyncIterator[HttpClient]:
    async with open_connection(application) as stream:
        yield HttpClient(stream)
