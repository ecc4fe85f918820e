"""HTTP routes of admins: the live tree and its changes, places that begin anew, signals.

The root does what is asked. `/session` is where the page of `serve --demo` gets its key.
"""

import hmac
import math

import msgspec
import trio

from ...runtime.messages import ControlCall, ControlQuestion, Place, Role, Signal, SignalOrder
from ...runtime.processes.news import NewsQueue
from ..application import Application, Call
from ..errors import ApiError, bad_field
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
SESSION = Body({"token": Field(TextKind(characters_max=200), "As it was printed.", required=True)})


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
    """What is new, or a comment when there is nothing for long; nothing once it drains."""
    silent_s = application.settings.sse_keep_alive_s or math.inf
    with trio.CancelScope() as scope, application.idle(scope, silent_s):
        news = await queue.take()
        kinds = ["snapshot" if news.is_whole else "change", *["change"] * len(news.texts)]
        pairs = zip(kinds, news.texts, strict=False)
        return "".join(f"event: {kind}\ndata: {text}\n\n" for kind, text in pairs).encode()
    return b"" if application.is_draining else COMMENT


async def open_session(call: Call) -> None:
    """`POST /session`: the key of `serve --demo`, for its one-time token.

    Raises `ApiError` 404 without `--demo`, 403 for another token, or one that was used.
    """
    settings = call.application.settings
    if not settings.demo_token:
        raise ApiError(404, "There is no route '/session' but with --demo", "route_not_found")
    token = SESSION.read(await call.connection.read_json())["token"]
    if not hmac.compare_digest(token.encode(), settings.demo_token.encode()):
        raise ApiError(403, "The token is not the one that was printed", "token_unknown")
    text = await call.application.root.ask(ControlQuestion(ControlCall.TOKEN))
    if not msgspec.json.decode(text)["is_first"]:
        message = "The token was used; to get another one, start the server again"
        raise ApiError(403, message, "token_used")
    call.connection.execute_once()
    await call.connection.answer_json(200, {"admin_key": settings.admin_keys[-1]})
