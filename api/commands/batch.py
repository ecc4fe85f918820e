"""Batch of requests from a file, `triolet batch`, answered by a server that is started for it.

Every request has a key of its own (`Idempotency-Key`), so it is computed once however often it is
sent: after a death of a connection, a frontend or an engine, and, with `--url`, of this command.
What cannot be answered now is asked again; the output has final answers alone, which are what the
request alone decides.
"""

import hashlib
import math
import pathlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import attrs
import h11
import msgspec
import trio

from ...engine.errors import InvalidParameter
from ...nurseries.tasks.background import start_background_task
from ...nurseries.tasks.service import single_errors_unwrapped
from ...runtime.events import ChildProgress, ChildStopped, OnEvent
from ...runtime.fleet.root import Root
from .batch_file import AnswerFile, BatchRequest, answer_line, check_files, read_requests
from .options import BatchOptions
from .plan import fetch_plan, make_plan
from .serve import door_of

# Statuses of answers that may differ a moment later: too many requests, no engine, draining.
_AGAIN = frozenset({429, 502, 503, 504})
# The key was used, and its answer is not to be had: it takes another one.
_LOST = frozenset({409, 410})
# No answer to a request, but to who asks.
_NOT_OURS = frozenset({401, 403})
_BREAKS = (OSError, trio.BrokenResourceError, trio.TooSlowError, h11.RemoteProtocolError)
# Pauses between tries; a server that is there again within a minute finds us.
AGAIN_S = 0.5
AGAIN_MAX_S = 8.0
# Tries without an answer, of one request: a quarter of an hour.
TRIES_MAX = 120
CONNECT_S = 10.0
_RECEIVE_BYTES = 64 * 2**10


@attrs.frozen
class BatchGivenUp(Exception):
    """The server did not answer a request for long, or closed for good."""

    reason: str

    def __str__(self) -> str:
        return f"{self.reason}. Start the batch again to go on with what has no answer yet"


@attrs.frozen
class BatchServer:
    """Address of a server that answers requests."""

    host: str
    port: int
    key: str = attrs.field(default="", repr=False)

    @classmethod
    def of(cls, url: str, key: str) -> "BatchServer":
        """Raises `InvalidParameter` for what is no plain `http://host:port`."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or 80
        except ValueError:
            host, port = None, 0
        if not host or parts.scheme != "http" or parts.path not in ("", "/"):
            raise InvalidParameter("url", f"must be like http://host:8000, not {url!r}")
        return cls(host, port, key)


async def run_batch(
    files: tuple[pathlib.Path, pathlib.Path],
    model: str | None,
    options: BatchOptions,
    *,
    runtime: dict[str, Any],
    on_event: OnEvent,
) -> str:
    """Answer what has no answer yet, from the first file into the second; returns what came of it.

    `runtime` are settings of the server, shaped as their tree.

    Raises `BatchFileError`, `BatchGivenUp`, `InvalidParameter`, and what a server's root raises.
    Cancellation: what was answered is in the file.
    """
    source, target = files
    count = check_files(source, target)
    answers = AnswerFile.open(target)
    try:
        before = sum(each.custom_id in answers.done for each in read_requests(source))
        if before == count:
            return f"all {count} have an answer in {target}"
        async with _open_server(model, options, runtime, on_event) as server:

            def show(answered: int) -> None:
                done = before + answered
                on_event(ChildProgress("batch", f"{done} of {count}", done / count))

            batch = Batch(server, answers, show)
            everything = read_requests(source)
            left = (each for each in everything if each.custom_id not in answers.done)
            await batch.run(left, options.in_flight)
            on_event(ChildStopped("batch", 0))
            return f"{batch.summary()}; {before} of {count} were there before"
    finally:
        answers.close()


@asynccontextmanager
async def _open_server(
    model: str | None, options: BatchOptions, runtime: dict[str, Any], on_event: OnEvent
) -> AsyncIterator[BatchServer]:
    """The server at the URL, or one of this model that ends with the block."""
    if options.url:
        server = BatchServer.of(options.url, options.api_key)
        try:
            await (await _connect(server)).aclose()
        except _BREAKS as error:
            raise BatchGivenUp(f"{options.url} cannot be reached: {error}") from error
        yield server
        return
    key = secrets.token_urlsafe(16)
    runtime = {**runtime, "engines": options.engines, "frontends": 1}
    tree = {"listen": {"port": 0}, "serve": {"api_keys": (key,)}, "runtime": runtime}
    plan = await fetch_plan(make_plan(model, tree), model, tree, on_event)
    with single_errors_unwrapped():
        async with trio.open_nursery() as nursery:
            root = Root(plan, on_event, make_elsewhere=door_of(plan.settings))
            hosts = plan.settings.hosts
            most_s = math.inf if options.engines else hosts.first_host_s
            with trio.move_on_after(most_s) as patience:
                task = await start_background_task(nursery, root.run, name="server")
            if patience.cancelled_caught:
                at = f" at {hosts.join_address}" if hosts.join_address else ""
                reason = f"no engine of a host has come{at} within {hosts.first_host_s:g} s"
                raise BatchGivenUp(reason)
            yield BatchServer.of(task.value, key)
            nursery.cancel_scope.cancel("the batch is through")


@attrs.define(eq=False)
class Batch:
    """Requests under way to one server, and the file of their answers."""

    server: BatchServer
    answers: AnswerFile
    # Called with their number whenever one has come.
    on_answer: Callable[[int], None] = lambda answered: None
    answered: int = attrs.field(default=0, init=False)
    refused: int = attrs.field(default=0, init=False)

    async def run(self, requests: Iterator[BatchRequest], in_flight: int) -> None:
        """Answer all, so many at a time. Raises `BatchFileError`, `BatchGivenUp`."""

        async def answer_next() -> None:
            for request in requests:
                await self._answer(request)

        with single_errors_unwrapped():
            async with trio.open_nursery() as nursery:
                for _ in range(in_flight):
                    nursery.start_soon(answer_next, name="requests")

    def summary(self) -> str:
        """Summary of the counts."""
        refused = f", {self.refused} of them refused" if self.refused else ""
        return f"{self.answered} answered{refused}"

    async def _answer(self, request: BatchRequest) -> None:
        delay_s, losses = AGAIN_S, 0
        for _ in range(TRIES_MAX):
            reason = "no connection"
            with suppress(*_BREAKS):
                status, request_id, body = await post(self.server, request, losses)
                if status in _LOST:
                    losses += 1
                elif status not in _AGAIN:
                    self._keep(request, status, request_id, body)
                    return
                reason = f"status {status}"
            await trio.sleep(delay_s)
            delay_s = min(2 * delay_s, AGAIN_MAX_S)
        raise BatchGivenUp(f"{request.custom_id} has no answer after {TRIES_MAX} tries ({reason})")

    def _keep(self, request: BatchRequest, status: int, request_id: str, body: bytes) -> None:
        try:
            value = msgspec.json.decode(body)
        except msgspec.MsgspecError:
            value = {"error": {"message": body.decode(errors="replace")}}
        if status in _NOT_OURS:
            raise BatchGivenUp(f"the server refuses us: {value['error']['message']}")
        response = {"status_code": status, "request_id": request_id, "body": value}
        self.answers.write(request.custom_id, answer_line(request.custom_id, response, None))
        self.answered += 1
        self.refused += status >= 400
        self.on_answer(self.answered)


async def post(
    server: BatchServer, request: BatchRequest, losses: int = 0
) -> tuple[int, str, bytes]:
    """Status, request id and body of the answer to one request, over a connection of its own.

    After each loss it has another key.

    Raises one of `_BREAKS` where it breaks off.
    """
    body = msgspec.json.encode(request.body)
    headers = [
        ("Host", f"{server.host}:{server.port}"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Idempotency-Key", f"batch-{losses}-{hashlib.sha256(request.line).hexdigest()}"),
        ("Connection", "close"),
    ]
    if server.key:
        headers.append(("Authorization", f"Bearer {server.key}"))
    connection = h11.Connection(h11.CLIENT)
    async with await _connect(server) as stream:
        head = h11.Request(method="POST", target=request.url, headers=headers)
        parts = (
            connection.send(each) or b"" for each in (head, h11.Data(body), h11.EndOfMessage())
        )
        await stream.send_all(b"".join(parts))
        status, request_id, received = 0, "", bytearray()
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(_RECEIVE_BYTES))
            elif isinstance(event, h11.Response):
                status = event.status_code
                request_id = dict(event.headers).get(b"x-request-id", b"").decode()
            elif isinstance(event, h11.Data):
                received += event.data
    return status, request_id, bytes(received)


async def _connect(server: BatchServer) -> trio.SocketStream:
    with trio.fail_after(CONNECT_S):
        return await trio.open_tcp_stream(server.host, server.port)
