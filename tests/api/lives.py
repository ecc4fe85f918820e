"""Lives of one frontend with its API, each after the one before has died, over one journal."""

import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from triolet.api.application import Application
from triolet.api.streams.claims import HEADER_NAME
from triolet.api.streams.served_stream import Order
from triolet.api.streams.service import StreamService
from triolet.fuzz.doubles.bed import Bed, open_bed
from triolet.fuzz.doubles.journal_memory import NotedMemory
from triolet.nurseries.tasks.service import open_service
from triolet.runtime.frontend.adoption import adopt_streams
from triolet.runtime.journal.journal import Journal
from triolet.runtime.journal.reader import read_journal
from triolet.runtime.journal.records import FILL_AT
from triolet.runtime.journal.writer import JournalWriter
from triolet.runtime.runtime import Runtime

from .fakes import Answer, open_client

TOKENS = 40
FREE = {"seed": 7, "ignore_eos": True}
STORY: dict[str, Any] = {
    "input": "hello world",
    "max_output_tokens": TOKENS,
    "temperature": 0.8,
    "runtime": {**FREE, "token_ids": True},
    "metadata": {"a": "b"},
}
KEEP_S = 30.0
WINDOW_TOKENS = 8


def open_noted(memory: NotedMemory, term: int) -> Journal:
    contents = read_journal(memory)
    return Journal.resume(JournalWriter.resume(memory, contents, term), contents)


@attrs.define(eq=False)
class Lives:
    """A frontend with its API, and the next ones."""

    bed: Bed
    memory: NotedMemory
    term: int = 1
    present: Application = attrs.field(init=False)
    _is_cut_off: bool = attrs.field(default=False, init=False)

    @asynccontextmanager
    async def first(self) -> AsyncIterator[Application]:
        frontend = self.bed.frontend
        frontend.client.journal = open_noted(self.memory, 1)
        async with self._serve(frontend) as application:
            yield application

    def cut_off(self) -> Runtime:
        """Nothing comes from the present one any more, and nothing arrives; harmless again."""
        frontend = self.present.generator
        assert isinstance(frontend, Runtime)
        if not self._is_cut_off:
            self._is_cut_off = True
            self.bed.cut_off(frontend)
        return frontend

    def kill(self) -> None:
        """Cut the present one off, and it writes nothing any more."""
        frontend = self.cut_off()
        frontend.client.journal = self.present.books.journal = None

    @asynccontextmanager
    async def next(self) -> AsyncIterator[Application]:
        self.kill()
        self.term += 1
        self._is_cut_off = False
        async with self.bed.open_successor(self.term) as frontend:
            journal = frontend.client.journal = open_noted(self.memory, self.term)
            streams = adopt_streams(frontend, journal)
            frontend.client.handle_rebuilt()
            async with self._serve(frontend) as application:
                await application.adopt(streams, KEEP_S)
                for response in application.responses.store.running():
                    until_s = trio.current_time() + KEEP_S + 1
                    assert response.order.is_keyed or response.scope.deadline < until_s
                yield application

    @asynccontextmanager
    async def _serve(self, frontend: Runtime) -> AsyncIterator[Application]:
        application = self.present = Application(frontend, journal=frontend.client.journal)
        async with open_service(application.streams.run, name="responses"):
            yield application


@asynccontextmanager
async def open_lives(
    folder: pathlib.Path, window_tokens: int = 256, **engine: Any
) -> AsyncIterator[Lives]:
    async with open_bed(folder, window_tokens=window_tokens, **engine) as bed:
        yield Lives(bed, NotedMemory.fresh(2**20))


@asynccontextmanager
async def reading_first(
    service: StreamService[Any, Any, Any], order: Order, position: Any = None, **how: Any
) -> AsyncIterator[Any]:
    """Read, as the client whose order it is."""
    async with service.open(order, **how) as stream:
        with stream.reading_first(position) as reader:
            yield reader


@asynccontextmanager
async def whole_again(
    service: StreamService[Any, Any, Any], stream_id: str, principal: str
) -> AsyncIterator[Any]:
    """The whole answer that a life before has begun; it was sent when the block is left."""
    stream = service.store.find(stream_id, principal)
    with stream.held():
        await stream.wait_ended()
        yield stream
        stream.is_over = True


def added(lives: Lives) -> int:
    """Requests that engines took in."""
    return sum(each.core.statistics().requests_added for each in lives.bed.servers.values())


async def post(
    application: Application, path: str, body: dict[str, Any], key: str = "", times: int = 1
) -> list[Answer]:
    """Answers to the same, so many times on one connection."""
    headers = {HEADER_NAME: key} if key else {}
    async with open_client(application) as client:
        with trio.fail_after(20):
            return [await client.request("POST", path, body, headers) for _ in range(times)]


async def under_way(service: StreamService[Any, Any, Any]) -> Any:
    """The stream that runs, when there is one."""
    with trio.fail_after(20):
        while not service.store.running():
            await trio.lowlevel.checkpoint()
    (stream,) = service.store.running()
    return stream


@asynccontextmanager
async def cut(
    lives: Lives, before: Application, path: str, body: dict[str, Any], key: str = ""
) -> AsyncIterator[tuple[Application, str]]:
    """The life after one that died with a request under way, and the id of that.

    Its client saw nothing.
    """
    service = before.responses if path == "/v1/responses" else before.completions
    async with asking(post, before, path, body, key) as client:
        stream = await under_way(service)
        async with lives.next() as after:
            client.cancel("its frontend died")
            yield after, stream.order.stream_id


def lose_what_follows(lives: Lives) -> NotedMemory:
    """What is left of the journal when the machine dies: it ends here, within a record."""
    memory = NotedMemory(bytearray(lives.memory.data))
    fill = int.from_bytes(memory.data[FILL_AT : FILL_AT + 8], "little")
    memory.data[FILL_AT : FILL_AT + 8] = (fill + 1).to_bytes(8, "little")
    return memory


@asynccontextmanager
async def asking(
    async_fn: Callable[..., Awaitable[object]], *args: object
) -> AsyncIterator[trio.CancelScope]:
    """A client asks in this block; its scope cuts it off, and not the block."""
    scope = trio.CancelScope()

    async def ask() -> None:
        with scope:
            await async_fn(*args)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        yield scope
        scope.cancel("the block is left")
