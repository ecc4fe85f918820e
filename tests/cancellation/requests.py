"""Cancels the tasks of a request by name, at the n-th step, over a whole frontend and an engine.

The bed is in one process: connections over memory streams, links over the memory mesh, the null
executor. After each run everything that the request held must be free, and another request that
ran all the time must have had exactly its tokens.
"""

import contextlib
import pathlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import attrs
import h11
import trio
import trio.testing
import wsproto.utilities

from triolet.api.application import Application
from triolet.api.serving.connection import run_connection
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.doubles.bed import Bed, open_bed
from triolet.nurseries.tasks.background import background_task_of, start_background_task_soon
from triolet.tests.api.fakes import HttpClient, open_responses
from triolet.tests.api.websocket.socket_client import SocketClient
from triolet.tests.cancellation.named_steps import count_steps
from triolet.tests.live_tasks import find_background_tasks

TOKENS = 4
RUNTIME = {"seed": 7, "ignore_eos": True}
PROMPT = "hello world"
# What an end of the connection looks like to a client, wherever it comes.
ENDS = (
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    h11.RemoteProtocolError,
    wsproto.utilities.RemoteProtocolError,
    wsproto.utilities.LocalProtocolError,
)
Exchange = Callable[[trio.abc.Stream], Awaitable[bool]]


async def _request(stream: trio.abc.Stream, path: str, body: dict[str, object]) -> bool:
    """Whether a whole answer came that is no error."""
    answer = await HttpClient(stream).request("POST", path, body)
    if body.get("stream"):
        kinds = list(answer.events())
        return "error" not in kinds[-1] and kinds[-1].get("type") != "response.failed"
    return answer.status == 200


async def responses_whole(stream: trio.abc.Stream) -> bool:
    """A response in one piece."""
    body = {"input": PROMPT, "max_output_tokens": TOKENS, "runtime": RUNTIME}
    return await _request(stream, "/v1/responses", body)


async def responses_stream(stream: trio.abc.Stream) -> bool:
    """A response as events."""
    body = {"input": PROMPT, "max_output_tokens": TOKENS, "runtime": RUNTIME, "stream": True}
    return await _request(stream, "/v1/responses", body)


async def chat_stream(stream: trio.abc.Stream) -> bool:
    """A chat completion as chunks."""
    messages = [{"role": "user", "content": PROMPT}]
    body = {"messages": messages, "max_tokens": TOKENS, "stream": True, **RUNTIME}
    return await _request(stream, "/v1/chat/completions", body)


async def completions_stream(stream: trio.abc.Stream) -> bool:
    """Two prompts in one request, as chunks."""
    body = {"prompt": [PROMPT, "hi"], "max_tokens": TOKENS, "stream": True, **RUNTIME}
    return await _request(stream, "/v1/completions", body)


async def lanes(stream: trio.abc.Stream) -> bool:
    """A socket with two lanes, a response cancelled and one to its end, closed by the client."""
    socket = SocketClient(stream)
    if await socket.handshake() != 101:
        return False
    more = {"max_output_tokens": TOKENS, "runtime": RUNTIME}
    await socket.create(PROMPT, "a", **more)
    await socket.create(PROMPT, "b", max_output_tokens=100, runtime=RUNTIME)
    open_lanes = {"a", "b"}
    while open_lanes:
        event = await socket.receive()
        if event is None or event["type"] == "error":
            return False
        if event["type"] == "response.in_progress" and event["stream_id"] == "b":
            await socket.send({"type": "response.cancel", "stream_id": "b"})
        if event["type"] in ("response.incomplete", "response.completed"):
            open_lanes.remove(event["stream_id"])
    await socket.close()
    return await socket.receive() is None


EXCHANGES: dict[str, Exchange] = {
    "responses": responses_whole,
    "responses, streamed": responses_stream,
    "chat completions, streamed": chat_stream,
    "completions of two prompts, streamed": completions_stream,
    "socket with two lanes": lanes,
}


async def perform(exchange: Exchange, stream: trio.abc.Stream) -> bool:
    """Whether the exchange was whole; any end of the connection is one that was not."""
    whole = False
    with contextlib.suppress(*ENDS):
        whole = await exchange(stream)
    await trio.aclose_forcefully(stream)
    return whole


OTHER = SamplingParams(max_tokens=12, seed=3, ignore_eos=True)
OTHER_PROMPT = "somebody else"


def kind(name: str) -> str:
    """The name without what differs from one request to the next."""
    return re.sub(r"^(response|lane|completion) .*", r"\1", name)


class Watch(trio.abc.Instrument):
    """Counts the steps of the tasks of one kind, and cancels the one that makes the n-th."""

    def __init__(self, name: str = "", n: int = 0) -> None:
        self.name, self.steps_left = name, n
        # Every kind that made a step, in order.
        self.seen: dict[str, int] = {}

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        handle = background_task_of(task)
        if handle is None:
            return
        name = kind(handle.name)
        self.seen[name] = self.seen.get(name, 0) + 1
        if name == self.name:
            self.steps_left -= 1
            if self.steps_left == 0:
                handle.cancel("the step of this test")


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    trio.lowlevel.add_instrument(watch)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(watch)


@attrs.define(eq=False)
class RequestBed:
    """A frontend with its application and an engine, and what the other request must say."""

    bed: Bed
    application: Application
    expected: list[int] = attrs.field(factory=list, init=False)
    _baseline: set[str] = attrs.field(factory=set, init=False)

    async def settle(self) -> None:
        """What is there while no request runs."""
        self.expected = await self.other()
        await self.bed.wait_quiet()
        await trio.testing.wait_all_tasks_blocked()
        self._baseline = {task.name for task in find_background_tasks()}

    async def other(self) -> list[int]:
        """Another request's tokens."""
        async with self.bed.frontend.generate(OTHER_PROMPT, OTHER) as stream:
            await stream.collect()
            return list(stream.token_ids)

    async def run(self, exchange: Exchange, watch: Watch) -> bool:
        """One exchange beside another request; whether it was whole. Checks what is left."""
        client, server = trio.testing.memory_stream_pair()
        tokens: list[int] = []
        whole: list[bool] = []

        async def run_other() -> None:
            tokens.extend(await self.other())

        async def run_client() -> None:
            whole.append(await perform(exchange, client))

        with watching(watch):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_other)
                connection = start_background_task_soon(
                    nursery, run_connection, server, self.application, name="connection"
                )
                nursery.start_soon(run_client)
                await connection.wait_ended()
            await self.check_nothing_left()
        assert tokens == self.expected, "the other request has its tokens, exactly"
        return whole[0]

    async def check_nothing_left(self) -> None:
        """Blocks free, no state of a request on any floor, no task."""
        await self.bed.wait_quiet()
        await trio.testing.wait_all_tasks_blocked()
        client, counters = self.bed.client, self.application.counters
        assert self.bed.frontend.admission.active_requests == 0
        assert sum(map(client.ledger.placed.count, client.balancer.engines)) == 0
        assert counters.connections_active == counters.sockets_active == 0
        assert self.application.responses.store.active == 0
        assert {task.name for task in find_background_tasks()} == self._baseline


@asynccontextmanager
async def open_request_bed(folder: pathlib.Path) -> AsyncIterator[RequestBed]:
    """Everything between a connection and the null executor's tokens."""
    async with open_bed(folder) as bed:
        application = Application(bed.frontend)
        async with open_responses(application):
            made = RequestBed(bed, application)
            await made.settle()
            yield made


async def tasks_of(bed: RequestBed, exchange: Exchange) -> list[str]:
    """The kinds of background tasks that this exchange has of its own."""
    idle = {kind(task.name) for task in find_background_tasks()}
    watch = Watch()
    assert await bed.run(exchange, watch), "undisturbed it is whole"
    return [name for name in watch.seen if name not in idle]


async def cancel_at_each_step(
    bed: RequestBed, exchange: Exchange, name: str, *, every: bool
) -> int:
    """How many steps there were to be cancelled at; the run after the last one is whole."""

    async def reaches(n: int) -> bool:
        watch = Watch(name, n)
        whole = await bed.run(exchange, watch)
        assert whole or watch.steps_left <= 0, "nobody was cancelled"
        return watch.steps_left <= 0

    return await count_steps(reaches, every=every)
