"""Accounting of KV blocks: requests ended in every way over a real engine, and what is left.

The server's own connections, frontend, link, core and step loop, with the null executor and far too
few KV blocks, so that requests preempt each other. Afterwards every block must be free, nobody may
hold one, and the blocks of each request that was aborted were free within two steps. Rows that fail
in the worker, those of seeds from `DOOMED` on, are among the ends.
"""

import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, Protocol

import attrs
import trio

from ..engine.errors import InvalidParameter
from ..engine.messages import EngineStatistics
from ..engine.sampling_params import SamplingParams
from ..engine.step_messages import Step, StepResult, WorkerReady
from ..nurseries.tasks.service import single_errors_unwrapped
from ..runtime.errors import NoEngine, RequestFailed
from ..runtime.frontend.generation import GenerationStream
from .doubles.served import DEADLINE_S, Served, open_served
from .doubles.tcp_client import reset
from .doubles.websocket_frames import HANDSHAKE, TEXT, frame

# A request with seed `DOOMED + n` fails in the place of its output token n; other seeds are below.
DOOMED = 2**40
REASON = "this row fails on order"


class Computes(Protocol):
    """Calls of an executor that are used here."""

    def load(self, progress: Any) -> WorkerReady: ...

    def execute(self, step: Step, wait_mask: Any) -> StepResult: ...


@attrs.define(eq=False)
class FailingRows:
    """Like `worker`, but for its doomed rows."""

    worker: Computes
    # {row that is held and doomed: how many tokens it samples before it fails}.
    _left: dict[int, int] = attrs.field(factory=dict, init=False)

    def load(self, progress: Any) -> WorkerReady:
        return self.worker.load(progress)

    def execute(self, step: Step, wait_mask: Any) -> StepResult:
        """Execute; the tokens of rows that fail are left out."""
        for row in step.finished:
            self._left.pop(row, None)
        for new in step.new:
            if new.sampling.seed >= DOOMED:
                output = len(new.token_ids) - new.prompt_tokens
                self._left[new.row] = new.sampling.seed - DOOMED - output
        result = self.worker.execute(step, wait_mask)
        failed = [row for row in result.rows if self._left.get(row, 1) <= 0]
        for row in result.rows:
            if row in self._left:
                self._left[row] -= 1
        kept = [index for index, row in enumerate(result.rows) if row not in failed]
        return attrs.evolve(
            result,
            rows=[result.rows[index] for index in kept],
            token_ids=[result.token_ids[index] for index in kept],
            failed_rows=[*result.failed_rows, *((row, REASON) for row in failed)],
        )


# Blocks for three requests of full length, though eight may run.
ENGINE: dict[str, Any] = {
    "kv_blocks": 24,
    "max_num_seqs": 8,
    "max_model_len": 128,
    "max_num_batched_tokens": 48,
}
IN_FLIGHT = 24
TOKENS_MAX = 48
# Beginnings of some prompts, so that blocks are shared; none is longer than 64 tokens.
COMMON = [list(range(10 * share, 10 * share + 40)) for share in range(3)]
# Links are cut so often, in requests.
CUT_EVERY = 250
_RESPONSE_ID = re.compile(rb'"id":"(resp_[^"]+)"')


class _Gone(Exception):
    """Error that a caller raises in a stream's block."""


class _Cut(Exception):
    """The server has ended the connection."""


@attrs.frozen
class Accounts:
    """Rest when all have gone."""

    ended: Counter[str]
    statistics: EngineStatistics
    blocks_held: int

    def lines(self) -> list[str]:
        """Lines for people."""
        counts = self.statistics
        return [
            *(f"  {count:7} {name}" for name, count in sorted(self.ended.items())),
            f"engine: {counts.requests_added} requests, {counts.requests_finished} finished,"
            f" {counts.requests_aborted} aborted, {counts.preemptions} preemptions,"
            f" {counts.prefix_hits} of {counts.prefix_queries} prompt tokens cached,"
            f" {counts.step} steps",
            f"blocks: {counts.kv_blocks_free} of {counts.kv_blocks} free,"
            f" {self.blocks_held} with a reference",
            "steps from an abort to its blocks being free: "
            + ", ".join(f"{n}: {count}" for n, count in enumerate(counts.aborts_after)),
        ]

    def judge(self) -> None:
        """Fails an assertion if a block or a request is not accounted for."""
        counts = self.statistics
        assert counts.kv_blocks_free == counts.kv_blocks, "a block is not free"
        assert self.blocks_held == 0, "a block is referred to"
        assert counts.waiting == counts.running == 0
        assert counts.requests_added == counts.requests_finished + counts.requests_aborted
        assert sum(counts.aborts_after) == counts.requests_aborted
        assert len(counts.aborts_after) <= 3, "an abort took more than two steps"


async def account(requests: int, seed: int) -> Accounts:
    """Run so many requests, at most `IN_FLIGHT` at once, until nothing is left of them.

    Raises whatever went wrong, bare.
    """
    ended: Counter[str] = Counter()
    with single_errors_unwrapped():
        async with open_served(wrap=FailingRows, **ENGINE) as served:
            await _run_all(served, requests, seed, ended)
            await served.check_unharmed()
            with trio.move_on_after(DEADLINE_S):
                await served.bed.wait_quiet()
            core = served.bed.servers[0].core
            core.check_invariants()
            pool = core._scheduler.kv_cache.pool
            held = sum(pool.references(block_id) > 0 for block_id in range(pool.blocks))
            return Accounts(ended, core.statistics(), held)


async def _run_all(served: Served, requests: int, seed: int, ended: Counter[str]) -> None:
    chance = Random(f"accounting {seed}")
    limiter = trio.CapacityLimiter(IN_FLIGHT)
    async with trio.open_nursery() as nursery:
        for number in range(requests):
            await limiter.acquire_on_behalf_of(number)
            name = chance.choice(sorted(WAYS))
            one = _One(served, Random(chance.random()), number)
            nursery.start_soon(_run_one, one, name, limiter, ended)
            if number % CUT_EVERY == CUT_EVERY - 1:
                _cut_link(served)
                ended["link cut"] += 1


def _cut_link(served: Served) -> None:
    """The frontend's link breaks; a RESYNC brings back what is still wanted."""
    links = served.bed.hub.links
    for peer in links.peers:
        links.break_link(peer, "it is cut")


@attrs.frozen
class _One:
    """Request, and what decides about it."""

    served: Served
    chance: Random
    number: int

    def prompt(self) -> list[int]:
        """Token ids, perhaps with a beginning that others have, too."""
        own = [self.chance.randrange(100, 300) for _ in range(self.chance.randint(1, 20))]
        return self.chance.choice([[], *COMMON]) + own

    def params(self, **others: object) -> SamplingParams:
        """Parameters of a request that goes on for a while."""
        values: dict[str, Any] = {"max_tokens": TOKENS_MAX, "ignore_eos": True}
        values.update(seed=self.number, **others)
        return SamplingParams(**values)

    def body(self, **fields: object) -> bytes:
        """A request over HTTP."""
        prompt = {"prompt": self.prompt(), "max_tokens": TOKENS_MAX, "stream": True}
        return json.dumps({**prompt, "ignore_eos": True, "seed": self.number, **fields}).encode()

    async def take(self, stream: GenerationStream, tokens: int) -> None:
        """Consume at least so many tokens, or all there are."""
        async for _ in stream:
            if len(stream.token_ids) >= tokens:
                return


Way = Callable[[_One], Awaitable[None]]


async def _whole(one: _One) -> None:
    priority = one.chance.randint(-1, 1)
    generate = one.served.bed.frontend.generate
    async with generate(one.prompt(), one.params(), priority=priority) as stream:
        await stream.collect()
    assert len(stream.token_ids) == TOKENS_MAX


async def _left_early(one: _One) -> None:
    async with one.served.bed.frontend.generate(one.prompt(), one.params()) as stream:
        await one.take(stream, one.chance.randrange(TOKENS_MAX))


async def _left_at_once(one: _One) -> None:
    async with one.served.bed.frontend.generate(one.prompt(), one.params()):
        pass


async def _cancelled(one: _One) -> None:
    """At whichever checkpoint comes then."""
    with single_errors_unwrapped():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_whole, one)
            for _ in range(one.chance.randrange(200)):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel("the caller wants no more")


async def _failed_in_the_block(one: _One) -> None:
    with suppress(_Gone):
        async with one.served.bed.frontend.generate(one.prompt(), one.params()) as stream:
            await one.take(stream, one.chance.randrange(TOKENS_MAX))
            raise _Gone


async def _stopped_by_a_string(one: _One) -> None:
    """The frontend finds it, and aborts."""
    params = one.params(stop=("e", "a", " "))
    async with one.served.bed.frontend.generate(one.prompt(), params) as stream:
        await stream.collect()


async def _paused_and_left(one: _One) -> None:
    """Pause without credit, keeping blocks until others need them or it is aborted."""
    generate = one.served.bed.frontend.generate
    async with generate(one.prompt(), one.params(), credit=4) as stream:
        await one.take(stream, 4)
        for _ in range(one.chance.randrange(50)):
            await trio.lowlevel.checkpoint()


async def _failed_in_the_worker(one: _One) -> None:
    """Fail in the worker, by logits that are no numbers, say: alone, after the tokens before."""
    tokens = one.chance.randrange(TOKENS_MAX)
    doomed = attrs.evolve(one.params(), seed=DOOMED + tokens)
    async with one.served.bed.frontend.generate(one.prompt(), doomed) as stream:
        failure = ""
        try:
            await stream.collect()
        except RequestFailed as error:
            failure = str(error)
    assert REASON in failure
    assert len(stream.token_ids) == tokens, (
        len(stream.token_ids),
        tokens,
        failure,
        doomed.max_tokens,
    )


async def _refused(one: _One) -> None:
    try:
        async with one.served.bed.frontend.generate([], one.params()):
            raise AssertionError("an empty prompt was taken")
    except InvalidParameter:
        pass


async def _http_reset(one: _One) -> None:
    """RST in mid-stream, after however much was read."""
    body = one.body()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode()
    await _talk_and_reset(one, head + body)


async def _socket_reset(one: _One) -> None:
    """The same of a WebSocket."""
    await _talk_and_reset(one, HANDSHAKE + _create(one))


async def _socket_cancel(one: _One) -> None:
    """`response.cancel` of a lane, read to its end."""
    stream = await trio.open_tcp_stream(*one.served.address)
    async with stream:
        await stream.send_all(HANDSHAKE + _create(one))
        received = b""
        while not (found := _RESPONSE_ID.search(received)):
            received += await _receive(stream)
        cancel = {"type": "response.cancel", "response_id": found.group(1).decode()}
        await stream.send_all(frame(TEXT, json.dumps(cancel).encode()))
        ends = (b'"type":"response.cancelled"', b'"type":"response.incomplete"')
        while not any(end in received for end in ends):
            received += await _receive(stream)
        reset(stream)


async def _talk_and_reset(one: _One, data: bytes) -> None:
    stream = await trio.open_tcp_stream(*one.served.address)
    async with stream:
        await stream.send_all(data)
        wanted = one.chance.choice((0, 200, 2000, 6000))
        received = b""
        while len(received) < wanted and b"[DONE]" not in received:
            received += await _receive(stream)
        assert received[9:12] in (b"", b"200", b"101", b"503"), received
        reset(stream)


async def _receive(stream: trio.SocketStream) -> bytes:
    """Raises `_Cut` where the server ends it: it has short limits, and we answer no pings."""
    try:
        data = await stream.receive_some(4096)
    except trio.BrokenResourceError:
        data = b""
    if not data:
        raise _Cut
    return bytes(data)


def _create(one: _One) -> bytes:
    event = {"type": "response.create", "input": "some words", "max_output_tokens": TOKENS_MAX}
    return frame(TEXT, json.dumps(event).encode())


WAYS: dict[str, Way] = {
    "ran to its end": _whole,
    "block left early": _left_early,
    "block left at once": _left_at_once,
    "cancelled": _cancelled,
    "exception in the block": _failed_in_the_block,
    "stop string": _stopped_by_a_string,
    "left while paused": _paused_and_left,
    "row failed in the worker": _failed_in_the_worker,
    "refused": _refused,
    "HTTP connection reset": _http_reset,
    "WebSocket reset": _socket_reset,
    "response.cancel": _socket_cancel,
}


async def _run_one(
    one: _One, name: str, limiter: trio.CapacityLimiter, ended: Counter[str]
) -> None:
    try:
        await WAYS[name](one)
        ended[name] += 1
    except _Cut:
        ended["connection cut by the server"] += 1
    except NoEngine:
        ended["refused while its link was down"] += 1
    finally:
        limiter.release_on_behalf_of(one.number)
