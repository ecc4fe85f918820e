"""Bystanders and their scripts: clients that stream while faults happen to others.

A script is a request with one right answer, learnt once from an undisturbed run; with the null
executor it is also recomputed here, since there a token is a pure function of seed, position and
the token before. Bystanders ask for one script after another and record a history of each stream;
one that is refused, or loses its connection before its first event, waits a little and goes on, as
a good client would. What had begun is read on by number, on another connection.
"""

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import attrs
import trio

from ...engine.worker.null.executor import null_token
from .clients import PATH, EventConnection, Lost, SocketConnection, ask, open_events
from .fault_plan import Transport
from .history import StreamHistory, Violation

PROMPTS = (
    "Tell me a story about a fox.",
    "The old lantern went out, and then",
    "Who lives at the end of the lane?",
)
# Short ones end while a fault is on, long ones live through several.
SHORT_TOKENS, MIDDLE_TOKENS = 24, 90
# Some ten steps of the null executor's.
MERGE_MS = 100
# A probe must outlive its moment and its fault: the latest moment is at token 40.
PROBE_TOKENS = 240
# More than any executor gives between two looks at a stream.
LAST_TOKENS = 900

# Metadata, which is told at a response's beginning and at its end, whatever that is: more than the
# receive buffer of a client that wants a small one, so that one that does not read holds up the
# server also when its stream is cut short. It is no part of the prompt.
BULK = {f"bulk {number}": "x" * 512 for number in range(16)}


@attrs.frozen
class Script:
    """One request of exactly `tokens` tokens."""

    prompt: str
    seed: int
    tokens: int
    # So long its tokens may wait for each other: an engine dies with some that it has not told.
    merge_ms: int = 0
    # A grammar without an end.
    form: str = ""

    def body(self, note: str = "", **fields: Any) -> dict[str, Any]:
        """As a Responses request; `fields` are added. `note` is put into its form, if it has one,
        which is another form by that, with the same answers."""
        runtime: dict[str, Any] = {"seed": self.seed, "ignore_eos": True, "token_ids": True}
        if self.form:
            runtime["structured_outputs"] = {"grammar": f"{self.form}\n// {note}\n"}
        return {
            "input": self.prompt,
            "max_output_tokens": self.tokens,
            "temperature": 0.8,
            "include": ["message.output_text.logprobs"],
            "runtime": {**runtime, "merge_ms": self.merge_ms},
            **fields,
        }


PROBES = tuple(Script(prompt, seed, PROBE_TOKENS) for seed, prompt in enumerate(PROMPTS))
BYSTANDERS = tuple(
    Script(prompt, seed, tokens, merge_ms)
    for seed, prompt in enumerate(PROMPTS, 10)
    for tokens, merge_ms in ((SHORT_TOKENS, 0), (MIDDLE_TOKENS, 0), (MIDDLE_TOKENS, MERGE_MS))
)
# Answers of a given form, which is checked anew for each of them.
FORMED = tuple(
    Script(prompt, seed, tokens, form=form)
    for seed, (prompt, tokens, form) in enumerate(
        (
            (PROMPTS[0], SHORT_TOKENS, "start: /[a-z ]*/"),
            (PROMPTS[1], MIDDLE_TOKENS, "start: /([0-9]+, )*/"),
        ),
        40,
    )
)
# Who comes in numbers, with long prompts, where there is no memory: more than is at hand.
GUEST = Script(" ".join(80 * ["more and more"]), 30, SHORT_TOKENS)
GUESTS, FEW_GUESTS = 48, 8
# And whose bodies are long, and never end.
GLUTTONS, GLUTTON_BYTES = 8, 4 * 2**20
SCRIPTS = (*PROBES, *BYSTANDERS, *FORMED, GUEST)


def check_null_tokens(script: Script, token_ids: Sequence[int], vocab_size: int) -> list[Violation]:
    """Whether these are the null executor's tokens; the first depends on the prompt, too, and with
    a form all depend on what it allows."""
    if script.form:
        return []
    for position in range(1, len(token_ids)):
        wanted = null_token(script.seed, position, token_ids[position - 1], vocab_size=vocab_size)
        if token_ids[position] != wanted:
            evidence = f"token {position} of seed {script.seed} is {token_ids[position]}"
            return [Violation("I2", f"{evidence}, computed here it is {wanted}")]
    return []


# Nothing that a stream may have to wait for lasts so long: stops are 2 s, two successors of a
# frontend, one after the other, some ten seconds each on two busy cores.
STREAM_DEADLINE_S = 90.0
# A client that lost its server waits so long before it comes again.
BACKOFF_S = 0.2
# And who comes back to a stream that had begun.
RETURN_S = 0.05
# Its frontend has no successor yet.
NOT_YET = "response_unreachable"
LANES = ("a", "b", "c")


def start_history(
    name: str, script: Script, transport: Transport, *, key: str = ""
) -> StreamHistory:
    """An empty record of a stream that begins now."""
    number = SCRIPTS.index(script)
    return StreamHistory(name, number, transport, trio.current_time(), key=key)


async def forget(port: int, history: StreamHistory) -> None:
    """Delete what has ended, as a good client does who needs it no more.

    Else a server's memory grows until it keeps as many as it may, for an hour or so, and the
    oldest, which campaigns ask for again, are forgotten.
    """
    with contextlib.suppress(Lost):
        if history.response_id:
            await ask(port, "DELETE", f"{PATH}/{history.response_id}", key=history.key)


def is_not_yet(event: Mapping[str, Any]) -> bool:
    """Whether what was asked for is to be asked for again."""
    return bool(event["type"] == "error" and event["error"]["code"] == NOT_YET)


async def read_history(
    connection: EventConnection, history: StreamHistory, on_event: Callable[[], None] = lambda: None
) -> None:
    """Read a stream, alone on its connection, to its end, whatever that is."""
    try:
        while history.ending is None:
            event = await connection.receive()
            if history.goes_on and is_not_yet(event):
                raise Lost(NOT_YET)
            history.see(event, trio.current_time())
            on_event()
    except Lost as lost:
        history.lose(str(lost), trio.current_time())


async def read_once(
    opened: AbstractAsyncContextManager[EventConnection],
    body: dict[str, Any],
    history: StreamHistory,
    seconds: float = STREAM_DEADLINE_S,
) -> None:
    """Ask on a connection that is not opened again, and read to the end, for so long at most."""
    with trio.move_on_after(seconds):
        try:
            async with opened as connection:
                await connection.create(body)
                await read_history(connection, history)
        except Lost as lost:
            history.lose(str(lost), trio.current_time())
    history.give_up(trio.current_time())


async def read_whole(
    port: int,
    body: dict[str, Any],
    history: StreamHistory,
    *,
    on_event: Callable[[], None] = lambda: None,
    patience: float = 1.0,
) -> None:
    """Ask on a connection of its own, and read to the end; come back by number where that is lost.

    Given up after `STREAM_DEADLINE_S`, `patience` times.
    """
    connect = partial(open_events, history.transport, port, key=history.key)
    await read_over(connect, body, history, on_event=on_event, patience=patience)


async def read_over(
    connect: Callable[[], AbstractAsyncContextManager[EventConnection]],
    body: dict[str, Any],
    history: StreamHistory,
    *,
    on_event: Callable[[], None] = lambda: None,
    patience: float = 1.0,
) -> None:
    """Ask and read to the end, over connections that `connect` opens; see `read_whole`."""
    with trio.move_on_after(STREAM_DEADLINE_S * patience):
        while history.ending is None:
            try:
                await _read_on(connect(), body, history, on_event)
            except Lost as lost:
                history.lose(str(lost), trio.current_time())
            await trio.sleep(RETURN_S if history.ending is None else 0)
    history.give_up(trio.current_time())


async def _read_on(
    opened: AbstractAsyncContextManager[EventConnection],
    body: dict[str, Any],
    history: StreamHistory,
    on_event: Callable[[], None],
) -> None:
    """By one connection. Raises `Lost`."""
    async with opened as connection:
        if history.response_id:
            history.come_back(trio.current_time())
            await connection.resume(history.response_id, history.last_number)
        else:
            await connection.create(body)
            on_event()
        await read_history(connection, history, on_event)


async def run_script(
    port: int,
    script: Script,
    name: str,
    transport: Transport,
    *,
    key: str,
    patience: float = 1.0,
) -> StreamHistory:
    """One stream, from its request to its end, by a client that comes back."""
    history = start_history(name, script, transport, key=key)
    history.comes_back = True
    await read_whole(port, script.body(name), history, patience=patience)
    return history


@attrs.define(eq=False)
class Bystanders:
    """Some clients on `port`, until `stopping` is set; then each ends what it has begun.

    `histories` fills, one entry for each stream, and is taken by whoever judges. A stream is of who
    has the `key` when it begins: with one for each fault, nobody is in the company of several
    deaths, for which he would be refused.
    """

    port: int
    chance: random.Random
    key: str
    # So many times longer a stream may last.
    patience: float = 1.0
    histories: list[StreamHistory] = attrs.field(factory=list, init=False)
    stopping: bool = attrs.field(default=False, init=False)
    _forgotten: int = attrs.field(default=0, init=False)
    _count: int = attrs.field(default=0, init=False)

    async def run(self, http: int, sockets: int) -> None:
        """So many HTTP clients and sockets with three lanes each. Returns when they have ended."""
        async with trio.open_nursery() as nursery:
            for number in range(http):
                nursery.start_soon(self._run_http, name=f"bystander http {number}")
            for number in range(sockets):
                nursery.start_soon(self._run_socket, name=f"bystander socket {number}")
            while not self.stopping:
                await self._forget()
                await trio.sleep(BACKOFF_S)
        await self._forget()

    async def _forget(self) -> None:
        """What has ended, in the order in which it began, up to the first that has not."""
        while self._forgotten < len(self.histories):
            history = self.histories[self._forgotten]
            if history.ending is None:
                return
            await forget(self.port, history)
            self._forgotten += 1

    async def _run_http(self) -> None:
        while not self.stopping:
            script = self.chance.choice(BYSTANDERS + FORMED)
            history = await run_script(
                self.port,
                script,
                self._name(),
                Transport.SSE,
                key=self.key,
                patience=self.patience,
            )
            self.histories.append(history)
            if history.code or history.message:
                await trio.sleep(BACKOFF_S)

    async def _run_socket(self) -> None:
        lanes = _Lanes(self)
        while lanes.running or not self.stopping:
            lanes.key = lanes.key if lanes.running else self.key
            try:
                async with open_events(Transport.SOCKET, self.port, key=lanes.key) as connection:
                    assert isinstance(connection, SocketConnection)
                    await lanes.run(connection)
            except Lost as lost:
                lanes.lose(str(lost))
                await trio.sleep(BACKOFF_S)

    def begin(self, lane: str, key: str, connected_s: float) -> tuple[Script, StreamHistory]:
        """A next stream on a lane of a socket that was opened at `connected_s`."""
        script = self.chance.choice(BYSTANDERS + FORMED)
        name = f"{self._name()} lane {lane}"
        history = start_history(name, script, Transport.SOCKET, key=key)
        history.connected_s, history.comes_back = connected_s, True
        self.histories.append(history)
        return script, history

    def _name(self) -> str:
        self._count += 1
        return f"bystander {self._count}"


@attrs.define(eq=False)
class _Lanes:
    """The lanes of one client, over one socket after another: each begins anew when its stream has
    ended, and goes on where its socket was lost.

    A socket has one key for life: when there is another, its lanes end one by one.
    """

    bystanders: Bystanders
    key: str = attrs.field(default="", init=False)
    running: dict[str, StreamHistory] = attrs.field(factory=dict, init=False)
    _connected_s: float = attrs.field(default=0.0, init=False)

    @property
    def _deadline_s(self) -> float:
        return STREAM_DEADLINE_S * self.bystanders.patience

    async def run(self, connection: SocketConnection) -> None:
        """Until all have ended; a lane that hangs is given up with the others. Raises `Lost`."""
        self._connected_s = trio.current_time()
        for lane in LANES:
            if lane in self.running:
                await self._resume(lane, connection)
            else:
                await self._begin(lane, connection)
        while self.running:
            oldest_s = min(history.started_s for history in self.running.values())
            with trio.move_on_at(oldest_s + self._deadline_s) as scope:
                await self._take(await connection.receive(), connection)
            if scope.cancelled_caught:
                self._give_up(trio.current_time())

    def lose(self, reason: str) -> None:
        """The socket is gone; what had begun goes on with the next one, unless that hangs."""
        now = trio.current_time()
        for lane, history in list(self.running.items()):
            history.lose(reason, now)
            if now - history.started_s > self._deadline_s:
                history.give_up(now)
            if history.ending is not None:
                del self.running[lane]

    def _give_up(self, now: float) -> None:
        for history in self.running.values():
            history.give_up(now)
        self.running.clear()

    async def _begin(self, lane: str, connection: SocketConnection) -> None:
        if self.bystanders.stopping or self.bystanders.key != connection.key:
            return
        script, self.running[lane] = self.bystanders.begin(lane, connection.key, self._connected_s)
        await connection.create(script.body(self.running[lane].name, stream_id=lane))

    async def _resume(self, lane: str, connection: SocketConnection) -> None:
        history = self.running[lane]
        history.come_back(self._connected_s)
        await connection.resume(history.response_id, history.last_number, stream_id=lane)

    async def _take(self, event: dict[str, object], connection: SocketConnection) -> None:
        lane = event.get("stream_id")
        assert isinstance(lane, str)
        history = self.running[lane]
        if history.goes_on and is_not_yet(event):
            await trio.sleep(RETURN_S)
            await self._resume(lane, connection)
            return
        history.see(event, trio.current_time())
        if history.ending is None:
            return
        del self.running[lane]
        if history.code:
            await trio.sleep(BACKOFF_S)
        await self._begin(lane, connection)
