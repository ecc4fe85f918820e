"""Bystanders and their scripts: clients that stream while faults happen to others.

A script is a request with one right answer, learnt once from an undisturbed run; with the null
executor it is also recomputed here, since there a token is a pure function of seed, position and
the token before. Bystanders ask for one script after another and record a history of each stream;
one that is refused or loses its connection waits a little and goes on, as a good client would.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import trio

from ...engine.worker.null.executor import null_token
from .clients import EventConnection, Lost, SocketConnection, open_events
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

    def body(self, **fields: Any) -> dict[str, Any]:
        """As a Responses request; `fields` are added."""
        runtime = {"seed": self.seed, "ignore_eos": True, "token_ids": True}
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
# Who comes in numbers, with long prompts, where there is no memory: more than is at hand.
GUEST = Script(" ".join(80 * ["more and more"]), 30, SHORT_TOKENS)
GUESTS = 48
# And whose bodies are long, and never end.
GLUTTONS, GLUTTON_BYTES = 8, 4 * 2**20
SCRIPTS = (*PROBES, *BYSTANDERS, GUEST)


def check_null_tokens(script: Script, token_ids: Sequence[int], vocab_size: int) -> list[Violation]:
    """Whether these are the null executor's tokens; the first depends on the prompt, too."""
    for position in range(1, len(token_ids)):
        wanted = null_token(script.seed, position, token_ids[position - 1], vocab_size=vocab_size)
        if token_ids[position] != wanted:
            evidence = f"token {position} of seed {script.seed} is {token_ids[position]}"
            return [Violation("I2", f"{evidence}, computed here it is {wanted}")]
    return []


# Nothing that a stream may have to wait for lasts so long: stops are 2 s, restarts some seconds
# on two busy cores.
STREAM_DEADLINE_S = 40.0
# A client that lost its server waits so long before it comes again.
BACKOFF_S = 0.2
LANES = ("a", "b", "c")


def start_history(name: str, script: Script, transport: Transport) -> StreamHistory:
    """An empty record of a stream that begins now."""
    return StreamHistory(name, SCRIPTS.index(script), transport, trio.current_time())


async def read_history(
    connection: EventConnection,
    history: StreamHistory,
    on_event: Callable[[], None] = lambda: None,
) -> None:
    """Read a stream, alone on its connection, to its end, whatever that is."""
    try:
        while history.ending is None:
            history.see(await connection.receive(), trio.current_time())
            on_event()
    except Lost as lost:
        history.lose(str(lost), trio.current_time())


async def run_script(
    port: int, script: Script, name: str, transport: Transport, *, key: str
) -> StreamHistory:
    """One stream on a connection of its own, from its request to its end."""
    history = start_history(name, script, transport)
    with trio.move_on_after(STREAM_DEADLINE_S):
        try:
            async with open_events(transport, port, key=key) as connection:
                await connection.create(script.body())
                await read_history(connection, history)
        except Lost as lost:
            history.lose(str(lost), trio.current_time())
    history.give_up(trio.current_time())
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
    histories: list[StreamHistory] = attrs.field(factory=list, init=False)
    stopping: bool = attrs.field(default=False, init=False)
    _count: int = attrs.field(default=0, init=False)

    async def run(self, http: int, sockets: int) -> None:
        """So many HTTP clients and sockets with three lanes each. Returns when they have ended."""
        async with trio.open_nursery() as nursery:
            for number in range(http):
                nursery.start_soon(self._run_http, name=f"bystander http {number}")
            for number in range(sockets):
                nursery.start_soon(self._run_socket, name=f"bystander socket {number}")

    async def _run_http(self) -> None:
        while not self.stopping:
            script = self.chance.choice(BYSTANDERS)
            history = await run_script(self.port, script, self._name(), Transport.SSE, key=self.key)
            self.histories.append(history)
            if history.code or history.message:
                await trio.sleep(BACKOFF_S)

    async def _run_socket(self) -> None:
        while not self.stopping:
            try:
                async with open_events(Transport.SOCKET, self.port, key=self.key) as connection:
                    assert isinstance(connection, SocketConnection)
                    await _Lanes(self, connection).run()
            except Lost:
                await trio.sleep(BACKOFF_S)

    def begin(self, lane: str, connected_s: float) -> tuple[Script, StreamHistory]:
        """A next stream on a lane of a socket that was opened at `connected_s`."""
        script = self.chance.choice(BYSTANDERS)
        history = start_history(f"{self._name()} lane {lane}", script, Transport.SOCKET)
        history.connected_s = connected_s
        self.histories.append(history)
        return script, history

    def _name(self) -> str:
        self._count += 1
        return f"bystander {self._count}"


@attrs.define(eq=False)
class _Lanes:
    """The lanes of one socket: each begins anew when its stream has ended.

    A socket has one key for life: when there is another, its lanes end one by one.
    """

    bystanders: Bystanders
    connection: SocketConnection
    _connected_s: float = attrs.field(factory=trio.current_time, init=False)
    _running: dict[str, StreamHistory] = attrs.field(factory=dict, init=False)

    async def run(self) -> None:
        """Until all have ended; a lane that hangs is given up."""
        try:
            for lane in LANES:
                await self._begin(lane)
            while self._running:
                oldest_s = min(history.started_s for history in self._running.values())
                with trio.move_on_at(oldest_s + STREAM_DEADLINE_S) as scope:
                    await self._take(await self.connection.receive())
                if scope.cancelled_caught:
                    return
        except Lost as lost:
            for history in self._running.values():
                history.lose(str(lost), trio.current_time())
            raise
        finally:
            for history in self._running.values():
                history.give_up(trio.current_time())

    async def _begin(self, lane: str) -> None:
        script, self._running[lane] = self.bystanders.begin(lane, self._connected_s)
        await self.connection.create(script.body(stream_id=lane))

    async def _take(self, event: dict[str, object]) -> None:
        lane = event.get("stream_id")
        assert isinstance(lane, str)
        history = self._running[lane]
        history.see(event, trio.current_time())
        if history.ending is None:
            return
        del self._running[lane]
        if history.code:
            await trio.sleep(BACKOFF_S)
        if not self.bystanders.stopping and self.bystanders.key == self.connection.key:
            await self._begin(lane)
