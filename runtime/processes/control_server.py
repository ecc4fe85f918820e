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

import attrs
import msgspec
import trio

from ...nurseries.tasks.background import start_background_task_soon
from ..errors import ControlCallRefused
from ..messages import ControlCall, Place
from .run_folder import RunFolder

# A question is one short line; an answer is a task tree of some thousand tasks at most.
QUESTION_BYTES_MAX = 4096
ANSWER_BYTES_MAX = 64 * 2**20
# "control reply 2 s" of the design, for gathering; a second more for the round trip.
REPLY_TIMEOUT_S = 3.0
CONNECTIONS_MAX = 8
# Out of descriptors: what is in flight must end before another connection fits.
ACCEPT_PAUSE_S = 0.05
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid (struct ucred)


@attrs.frozen
class ControlQuestion:
    """One line to the server."""

    call: ControlCall
    place: Place | None = None


@attrs.frozen
class ControlCallFailed(Exception):
    """The server did not answer, or answered with an error; `reason` says which."""

    reason: str

    def __str__(self) -> str:
        return f"the running server could not answer: {self.reason}"


# The root's answers, JSON text. Raises `ControlCallRefused`.
Answer = Callable[[ControlCall, Place | None], Awaitable[str]]


async def serve_control(
    folder: RunFolder,
    answer: Answer,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Background task `control-server`; never returns unless cancelled.

    Resource handling: binds the socket in the run folder, whose owner removes it with the folder.
    Error handling: a bad or slow caller loses its connection, no other notices.
    """
    limiter = trio.CapacityLimiter(CONNECTIONS_MAX)
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
                start_background_task_soon(
                    nursery, _serve_one, connection, answer, limiter, name="control-call"
                )


async def _serve_one(
    connection: trio.socket.SocketType, answer: Answer, limiter: trio.CapacityLimiter
) -> None:
    stream = trio.SocketStream(connection)
    async with stream, limiter:
        if not _same_user(connection):
            return
        with trio.move_on_after(REPLY_TIMEOUT_S):
            try:
                reply = await _reply(stream, answer)
                await stream.send_all(json.dumps(reply).encode() + b"\n")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return  # the caller left; nothing is owed


async def _reply(stream: trio.SocketStream, answer: Answer) -> dict[str, str]:
    line = await _receive_line(stream, QUESTION_BYTES_MAX)
    try:
        question = msgspec.json.decode(line, type=ControlQuestion)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        calls = ", ".join(ControlCall)
        return {"error": f"a question is one JSON object with a call of: {calls}"}
    try:
        return {"answer": await answer(question.call, question.place)}
    except ControlCallRefused as refused:
        return {"refused": refused.reason}


async def _receive_line(stream: trio.SocketStream, bytes_max: int) -> bytes:
    buffer = bytearray()
    while b"\n" not in buffer and len(buffer) <= bytes_max:
        data = await stream.receive_some(65536)
        if not data:
            break
        buffer += data
    return bytes(buffer)


def _same_user(connection: trio.socket.SocketType) -> bool:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return bool(uid == os.getuid())


async def ask_run(folder: RunFolder, call: ControlCall, place: Place | None = None) -> str:
    """Ask the server of this run folder. Raises `ControlCallFailed`, `ControlCallRefused`."""
    question = msgspec.json.encode(ControlQuestion(call, place))
    with trio.move_on_after(REPLY_TIMEOUT_S):
        try:
            with folder.socket_address() as address:
                stream = await trio.open_unix_socket(address)
            async with stream:
                await stream.send_all(question + b"\n")
                reply = json.loads(await _receive_line(stream, ANSWER_BYTES_MAX) or b"{}")
        except (OSError, ValueError, trio.BrokenResourceError) as error:
            raise ControlCallFailed(str(error)) from error
        if "refused" in reply:
            raise ControlCallRefused(str(reply["refused"]))
        if "answer" not in reply:
            raise ControlCallFailed(reply.get("error", "it closed the connection"))
        return str(reply["answer"])
    raise ControlCallFailed(f"no answer within {REPLY_TIMEOUT_S:g} s")
