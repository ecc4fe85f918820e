"""What admins may ask of the root: the tree, and places that begin anew."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from triolet.api.application import Application
from triolet.api.root_calls import RootCalls
from triolet.nurseries.tasks.service import open_service
from triolet.runtime.control.calls import (
    ControlCall,
    ControlQuestion,
    Place,
    Role,
    Signal,
    SignalOrder,
)
from triolet.runtime.messages import RootCall, RootReply, ServerNews, WatchServer

from ..fakes import make_application, open_client, open_connection

ADMIN = {"authorization": "Bearer admin"}
REFUSAL = "there is no engine 7: this server has engine 0 alone"
NO_PLACE = SignalOrder("engine 7", Signal.KILL)
GONE = SignalOrder("engine 0", Signal.STOP, 9)
REFUSALS: dict[object, tuple[str, str]] = {
    Place(Role.ENGINE, 7): (REFUSAL, "place_not_found"),
    NO_PLACE: (REFUSAL, "place_not_found"),
    GONE: ("engine 0 is another process by now", "process_changed"),
}


@attrs.define(eq=False)
class FakeRoot:
    """Answers as a root does, and notes what it was asked."""

    asked: list[RootCall] = attrs.field(factory=list)
    calls: RootCalls = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.calls = RootCalls(self.send)

    async def send(self, call: RootCall) -> None:
        await trio.lowlevel.checkpoint()
        self.asked.append(call)
        question = call.question
        refusal, code = REFUSALS.get(question.place or question.order, ("", ""))
        text = "" if refusal else f'{{"call":"{question.call}"}}'
        self.calls.handle_reply(RootReply(call.call_id, text, refusal, code))


async def ask(root: FakeRoot | None, method: str, path: str, body: Any = None) -> Any:
    application = make_application(admin_keys=("admin",))
    if root is not None:
        application.root = root.calls
    async with open_client(application) as client:
        return await client.request(method, path, body, headers=ADMIN)


@pytest.mark.parametrize("call", ["tree", "places"])
async def test_what_the_root_knows_is_asked_of_it(call: str) -> None:
    assert (await ask(FakeRoot(), "GET", f"/admin/{call}")).json == {"call": call}


async def test_without_a_root_it_is_503_with_retry_after() -> None:
    answer = await ask(None, "GET", "/admin/tree")
    assert (answer.status, answer.error["code"]) == (503, "root_unreachable")
    assert answer.headers["retry-after"] == "2"


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, None),
        ({"engine": 1}, Place(Role.ENGINE, 1)),
        ({"frontend": 0, "engine": None}, Place(Role.FRONTEND, 0)),
    ],
)
async def test_a_place_begins_anew(body: dict[str, Any], place: Place | None) -> None:
    root = FakeRoot()
    answer = await ask(root, "POST", "/admin/restart", body)
    assert (answer.status, answer.json) == (202, {"call": "restart"})
    assert root.asked == [RootCall(1, ControlQuestion(ControlCall.RESTART, place))]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"engine": 7}, 404, REFUSAL),
        ({"engine": 1, "frontend": 1}, 400, "send either it or `engine`"),
        ({"engine": "all"}, 400, "must be an integer"),
    ],
)
async def test_what_cannot_be_done_is_said(body: Any, status: int, message: str) -> None:
    answer = await ask(FakeRoot(), "POST", "/admin/restart", body)
    assert answer.status == status
    assert message in answer.error["message"]


async def test_a_signal_is_sent_by_the_root() -> None:
    root = FakeRoot()
    body = {"place": "engine 0 worker 1", "signal": "kill", "pid": 17}
    assert (await ask(root, "POST", "/admin/signal", body)).status == 202
    order = SignalOrder("engine 0 worker 1", Signal.KILL, 17)
    assert root.asked == [RootCall(1, ControlQuestion(ControlCall.SIGNAL, order=order))]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"place": "engine 7", "signal": "kill"}, 404, "place_not_found"),
        ({"place": "engine 0", "signal": "stop", "pid": 9}, 409, "process_changed"),
        ({"place": "engine 0", "signal": "hang"}, 400, "invalid_value"),
        ({"place": "engine 0", "signal": "kill", "pid": 0}, 400, "invalid_parameter"),
        ({"signal": "kill"}, 400, "missing_required_parameter"),
    ],
)
async def test_a_signal_that_cannot_be_sent_is_refused(body: Any, status: int, code: str) -> None:
    answer = await ask(FakeRoot(), "POST", "/admin/signal", body)
    assert (answer.status, answer.error["code"]) == (status, code)


@attrs.define(eq=False)
class FeedReader:
    """An admin's feed on a connection of its own, and what the frontend orders of the root."""

    application: Application
    stream: trio.abc.Stream
    orders: list[int] = attrs.field(factory=list)
    _received: bytes = attrs.field(default=b"", init=False)

    async def begin(self) -> None:
        request = (
            "GET /admin/feed HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer admin\r\n\r\n"
        )
        await self.stream.send_all(request.encode())
        await trio.testing.wait_all_tasks_blocked()
        assert b" 200 " in (await self.frame())

    async def frame(self) -> bytes:
        """The head, or the next event or comment; nothing at the end."""
        while b"\n\n" not in self._received.replace(b"\r", b""):
            data = await self.stream.receive_some()
            if not data:
                return self._received
            self._received += data
        frame, _, self._received = self._received.replace(b"\r", b"").partition(b"\n\n")
        return frame


@asynccontextmanager
async def open_feed(application: Application | None = None) -> AsyncIterator[FeedReader]:
    application = application or make_application(admin_keys=("admin",))
    async with open_connection(application) as stream:
        reader = FeedReader(application, stream)

        async def send(order: WatchServer) -> None:
            await trio.lowlevel.checkpoint()
            reader.orders.append(order.number)

        application.viewers.send = send
        async with open_service(application.viewers.run, name="viewers"):
            yield reader


async def test_a_feed_begins_with_a_snapshot(autojump_clock: trio.testing.MockClock) -> None:
    async with open_feed() as reader:
        await reader.begin()
        assert reader.orders == [1]
        viewers = reader.application.viewers
        viewers.handle_news(ServerNews(['{"t":0}'], is_whole=False))  # of another's
        viewers.handle_news(ServerNews(['{"t":1}', '{"t":2}'], is_whole=True))
        viewers.handle_news(ServerNews(['{"t":3}'], is_whole=False))
        assert await reader.frame() == b'event: snapshot\ndata: {"t":1}'
        assert await reader.frame() == b'event: change\ndata: {"t":2}'
        assert await reader.frame() == b'event: change\ndata: {"t":3}'
        assert await reader.frame() == b": keep-alive"  # nothing for long
        await reader.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert reader.orders == [1, 0]


async def test_a_slow_reader_gets_a_snapshot_next(autojump_clock: trio.testing.MockClock) -> None:
    async with open_feed() as reader:
        await reader.begin()
        viewers = reader.application.viewers
        viewers.handle_news(ServerNews(["1"], is_whole=True))
        for _ in range(5):
            viewers.handle_news(ServerNews(["x" * 300_000], is_whole=False))
        await trio.testing.wait_all_tasks_blocked()
        assert reader.orders == [1, 2]
        viewers.handle_news(ServerNews(["2"], is_whole=False))
        viewers.handle_news(ServerNews(["3"], is_whole=True))
        assert await reader.frame() == b"event: snapshot\ndata: 3"


async def test_a_feed_ends_when_the_server_drains() -> None:
    async with open_feed() as reader:
        await reader.begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.application.drain, 5.0)
            assert (await reader.frame()).startswith(b"event: end\n")
            assert await reader.frame() == b""
