"""Control socket of a running server: commands of the same user ask, the root answers.

One JSON object a line each way over a Unix socket in the run folder, whose peer must be the same
user (`SO_PEERCRED`; the folder's mode alone would trust anybody who changes it). The calls are a
closed list.
"""

import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial

import msgspec
import trio

from ...nurseries.tasks.background import start_background_task_soon
from ..control.calls import ControlCall, ControlQuestion
from ..control.client import CHANGE, REPLY_TIMEOUT_S, WHOLE, receive_line
from ..control.run_folder import RunFolder
from ..errors import ControlCallRefused
from .news import NewsQueue

# A question is one short line.
QUESTION_BYTES_MAX = 4096
CONNECTIONS_MAX = 8
# Viewers beside them; each may have a MiB of news that waits.
VIEWERS_MAX = 8
# A viewer that takes nothing for so long is stopped; it can come again.
NEWS_TIMEOUT_S = 10.0
# Out of descriptors: what is in flight must end before another connection fits.
ACCEPT_PAUSE_S = 0.05
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid (struct ucred)


# The root's answers, JSON text. Raises `ControlCallRefused`.
Answer = Callable[[ControlQuestion], Awaitable[str]]
# Watches for as long as its block: news of all that changes.
View = Callable[[], AbstractContextManager[NewsQueue]]


async def serve_control(
    folder: RunFolder,
    answer: Answer,
    view: View,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Background task `control-server`; never returns unless cancelled.

    Resource handling: binds the socket in the run folder, whose owner removes it with the folder.
    Error handling: a bad or slow caller loses its connection, no other notices.
    """
    limiter, viewers = trio.CapacityLimiter(CONNECTIONS_MAX), trio.CapacityLimiter(VIEWERS_MAX)
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with folder.socket_address() as address:
            await listener.bind(address)
        folder.socket_path.chmod(0o600)
        listener.listen(CONNECTIONS_MAX)
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                async with limiter:
                    pass  # wait for a place before accepting: the backlog is the bound
                try:
                    connection, _ = await listener.accept()
                except OSError:
                    await trio.sleep(ACCEPT_PAUSE_S)
                    continue
                serve = partial(_serve_one, answer, view, limiter=limiter, viewers=viewers)
                start_background_task_soon(nursery, serve, connection, name="control-call")


async def _serve_one(
    answer: Answer,
    view: View,
    connection: trio.socket.SocketType,
    *,
    limiter: trio.CapacityLimiter,
    viewers: trio.CapacityLimiter,
) -> None:
    async with trio.SocketStream(connection) as stream:
        try:
            async with limiter:
                if not _same_user(connection) or not await _answer_one(stream, answer, viewers):
                    return
            async with viewers:
                await _send_news(stream, view)
        except* (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            pass  # the caller left; nothing is owed. Grouped where it was waited for as well


async def _answer_one(
    stream: trio.SocketStream, answer: Answer, viewers: trio.CapacityLimiter
) -> bool:
    """Take a question; returns whether it is one for news, and there is room for a viewer."""
    with trio.move_on_after(REPLY_TIMEOUT_S):
        question = await _receive_question(stream)
        if question is None or question.call is not ControlCall.WATCH:
            reply = await _reply(question, answer)
        elif viewers.available_tokens:
            return True
        else:
            reply = {"error": f"it has {VIEWERS_MAX} viewers already"}
        await stream.send_all(json.dumps(reply).encode() + b"\n")
    return False


async def _receive_question(stream: trio.SocketStream) -> ControlQuestion | None:
    line = await receive_line(stream, QUESTION_BYTES_MAX)
    try:
        return msgspec.json.decode(line, type=ControlQuestion)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


async def _reply(question: ControlQuestion | None, answer: Answer) -> dict[str, str]:
    if question is None:
        calls = ", ".join(ControlCall)
        return {"error": f"a question is one JSON object with a call of: {calls}"}
    try:
        return {"answer": await answer(question)}
    except ControlCallRefused as refused:
        return {"refused": refused.reason}


async def _send_news(stream: trio.SocketStream, view: View) -> None:
    """Each a line behind its mark, until the caller leaves."""

    async def wait_left() -> None:
        while await stream.receive_some(QUESTION_BYTES_MAX):
            pass
        nursery.cancel_scope.cancel("the viewer has left")

    with view() as queue:
        async with trio.open_nursery() as nursery:
            start_background_task_soon(nursery, wait_left, name="viewer")
            while True:
                news = await queue.take()
                marks = [WHOLE if news.is_whole else CHANGE, *[CHANGE] * len(news.texts)]
                lines = zip(marks, news.texts, strict=False)
                with trio.fail_after(NEWS_TIMEOUT_S):
                    await stream.send_all(b"".join(b"%b%b\n" % (m, t.encode()) for m, t in lines))


def _same_user(connection: trio.socket.SocketType) -> bool:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return bool(uid == os.getuid())
