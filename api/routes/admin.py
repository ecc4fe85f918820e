"""HTTP routes of admins: the live tree and its changes, places that begin anew, signals.

The root does what is asked.
"""

import math

import trio

from ...runtime.control.calls import ControlCall, ControlQuestion, Place, Role, Signal, SignalOrder
from ...runtime.fleet.news import NewsQueue
from ..application import Application, Call
from ..errors import bad_field
from ..http.keep_alive import COMMENT
from ..http.request import JSON_TYPE
from ..schema.fields import IntegerKind, TextKind
from ..schema.tables import Body, Field

RESTART = Body(
    {
        "engine": Field(IntegerKind(), "Rank of the engine that is to begin anew."),
        "frontend": Field(IntegerKind(), "The same of a frontend; it serves out first."),
    }
)
SIGNAL = Body(
    {
        "place": Field(
            TextKind(characters_max=200), "As in the feed: `engine 0 worker 1`.", required=True
        ),
        "signal": Field(
            TextKind(choices=tuple(Signal)), "A stopped process is continued.", required=True
        ),
        "pid": Field(IntegerKind(minimum=1), "Refused if another process has the place by now."),
    }
)


async def get_tree(call: Call) -> None:
    """`GET /admin/tree`: the live task tree of all processes, as `triolet tree --json` shows it."""
    await _answer(call, 200, ControlQuestion(ControlCall.TREE))


async def get_places(call: Call) -> None:
    """`GET /admin/places`: every engine and frontend, and the state it is in."""
    await _answer(call, 200, ControlQuestion(ControlCall.PLACES))


async def restart(call: Call) -> None:
    """`POST /admin/restart`: an engine or a frontend begins anew; without one, all given up do.

    Raises `ApiError` 404 when there is none.
    """
    ranks = RESTART.read(await call.connection.read_json())
    if len(ranks) > 1:
        raise bad_field("frontend", "send either it or `engine`")
    place = next((Place(Role(role), rank) for role, rank in ranks.items()), None)
    call.connection.execute_once()
    await _answer(call, 202, ControlQuestion(ControlCall.RESTART, place))


async def send_signal(call: Call) -> None:
    """`POST /admin/signal`: kill, stop or continue a process of this server, by its place.

    Raises `ApiError` 404 when there is no such place, 409 when its process is not there or another.
    """
    fields = SIGNAL.read(await call.connection.read_json())
    order = SignalOrder(fields["place"], Signal(fields["signal"]), fields.get("pid", 0))
    if not order.pid:  # else a successor may ask again: this frontend may be the one that is killed
        call.connection.execute_once()
    await _answer(call, 202, ControlQuestion(ControlCall.SIGNAL, order=order))


async def _answer(call: Call, status: int, question: ControlQuestion) -> None:
    text = await call.application.root.ask(question)
    await call.connection.answer(status, text.encode(), content_type=JSON_TYPE)


async def get_feed(call: Call) -> None:
    """`GET /admin/feed`: all that changes in this server, as server-sent events, until it drains.

    A successor of this frontend goes on with it; its first event is a snapshot, as always. Raises
    `ApiError` 503 while draining, or when there are too many viewers.
    """
    application, connection = call.application, call.connection
    application.check_accepting()
    request = connection.request
    with connection.cancel_when_client_leaves(), application.viewers.view() as queue:
        await connection.start_events()
        if request is None or request.method != "HEAD":
            while frames := await _next_frames(application, queue):
                await connection.send_events(frames)
    await connection.end_events(b'event: end\ndata: {"reason":"the server is draining"}\n\n')


async def _next_frames(application: Application, queue: NewsQueue) -> bytes:
    """Frames of news, or a comment after a long silence; none once the server drains."""
    silent_s = application.settings.sse_keep_alive_s or math.inf
    with trio.CancelScope() as scope, application.idle(scope, silent_s):
        news = await queue.take()
        kinds = ["snapshot" if news.is_whole else "change", *["change"] * len(news.texts)]
        pairs = zip(kinds, news.texts, strict=False)
        return "".join(f"event: {kind}\ndata: {text}\n\n" for kind, text in pairs).encode()
    return b"" if application.is_draining else COMMENT
