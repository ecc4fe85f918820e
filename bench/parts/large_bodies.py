"""Largest gap of streams beside one large body of each kind, and without, in turns.

    python -m triolet.bench large_bodies [--megabytes 4] [--streams 16] [--rounds 3]

Starts `triolet serve` with the bundled model's folder and the null executor, whose steps take a
fixed time. Each body goes to a route that refuses what does not fit the model, and to one that
tokenises it whole. Printed are the largest gaps between two pieces of any stream, in ms, the status
of the answer, how long it took, and what the frontend's memory grew by in all.
"""

import base64
import json
import pathlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from ...fuzz.observers import costs_of_tree
from ...nurseries.tasks.background import start_background_task_soon
from .null_server import run_beside_server, wait_ready
from .words import argument_parser

PORT = 8879
STEP_S = 0.02
SETTLED_S = 5.0
# Between two bodies: gaps of one are not those of the next.
REST_S = 1.0
STORY = {"model": "bundled", "prompt": "x", "stream": True, "max_tokens": 900, "ignore_eos": True}
TEXTS = pathlib.Path(__file__).parents[2]


def _kinds(size: int) -> dict[str, object]:
    """Prompts of about so many bytes, by the words under which they are printed."""
    chance = random.Random(1)
    texts = sorted(TEXTS.glob("runtime/**/*.py"))
    real = "".join(path.read_text() for path in texts)
    letters = bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=size)).decode()
    return {
        "no blanks": letters,
        "base64": base64.b64encode(chance.randbytes(size * 3 // 4)).decode(),
        "one repeated token": " the" * (size // 4),
        "one letter": "A" * size,
        "emoji": "\U0001f642" * (size // 4),
        "white space": " " * size,
        "a real text": (real * (size // len(real) + 1))[:size],
        "token ids": [12345] * (size // 6),
        "token ids, too many": [7] * (size // 2),
        "arrays": [[]] * (size // 3),
        "objects with keys": [{str(i): 1} for i in range(size // 12)],
    }


def _request(route: str, body: dict[str, object]) -> bytes:
    data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    head = (
        f"POST {route} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


@attrs.define(eq=False)
class _Gaps:
    """The largest gap of any stream since it was taken."""

    last: dict[int, float] = attrs.field(factory=dict)
    largest: float = 0.0

    def take(self) -> float:
        """The largest one up to now, and of those that are still open."""
        now = trio.current_time()
        open_ones = [now - at for at in self.last.values()]
        found, self.largest = max([self.largest, *open_ones]), 0.0
        return found

    async def read(self, number: int) -> None:
        """Stream one story after the other, for ever."""
        request = _request("/v1/completions", STORY)
        while True:
            async with await trio.open_tcp_stream("127.0.0.1", PORT) as stream:
                await stream.send_all(request)
                self.last.pop(number, None)
                while await stream.receive_some(65536):
                    now = trio.current_time()
                    self.largest = max(self.largest, now - self.last.get(number, now))
                    self.last[number] = now
                self.last.pop(number, None)


async def _send(request: bytes) -> str:
    """The status of the answer, which is read to its end."""
    async with await trio.open_tcp_stream("127.0.0.1", PORT) as stream:
        await stream.send_all(request)
        head = await stream.receive_some(65536)
        while await stream.receive_some(65536):
            pass
    return head.split(b" ", 2)[1].decode()


@asynccontextmanager
async def _streams(count: int) -> AsyncIterator[_Gaps]:
    gaps = _Gaps()
    async with trio.open_nursery() as nursery:
        for number in range(count):
            start_background_task_soon(nursery, gaps.read, number, name=f"stream-{number}")
        await trio.sleep(REST_S)
        yield gaps
        nursery.cancel_scope.cancel("measured")


async def _measure(gaps: _Gaps, request: bytes, rounds: int) -> tuple[float, float, str, float]:
    """The largest gaps without and with the body, its status, and its longest time."""
    without, beside, longest_s, status = 0.0, 0.0, 0.0, ""
    for _ in range(rounds):
        await trio.sleep(REST_S)
        gaps.take()
        began = trio.current_time()
        status = await _send(request)
        elapsed_s = trio.current_time() - began
        beside, longest_s = max(beside, gaps.take()), max(longest_s, elapsed_s)
        await trio.sleep(REST_S)
        gaps.take()
        await trio.sleep(max(elapsed_s, REST_S))
        without = max(without, gaps.take())
    return without, beside, status, longest_s


def _frontend_mib(pid: int) -> float:
    (frontend,) = (cost for name, cost in costs_of_tree(pid).items() if name == "frontend")
    return frontend.resident_mib


ROUTES: dict[str, Callable[[object], dict[str, object]]] = {
    "/v1/completions": lambda prompt: {"model": "bundled", "prompt": prompt, "max_tokens": 1},
    "/tokenize": lambda prompt: {"model": "bundled", "prompt": prompt},
}


async def _run(pid: int, megabytes: float, streams: int, rounds: int) -> None:
    await wait_ready(PORT)
    await trio.sleep(SETTLED_S)
    print(f"{streams} streams, a token each {1000 * STEP_S:.0f} ms; largest gaps in ms")
    print(f"{'route':16} {'kind':20} {'without':>8} {'beside':>8} {'more':>6}  status  answer")
    async with _streams(streams) as gaps:
        before = _frontend_mib(pid)
        for kind, prompt in _kinds(int(megabytes * 2**20)).items():
            for route, body in ROUTES.items():
                found = await _measure(gaps, _request(route, body(prompt)), rounds)
                without, beside, status, seconds = found
                print(
                    f"{route:16} {kind:20} {1000 * without:8.0f} {1000 * beside:8.0f}"
                    f" {1000 * (beside - without):6.0f}  {status:6}  {seconds:.2f} s",
                    flush=True,
                )
        await trio.sleep(REST_S)
        print(f"frontend: {before:.0f} MiB before, {_frontend_mib(pid):.0f} MiB after")


def main() -> None:
    """Print a row for each route and kind."""
    parser = argument_parser(__doc__)
    parser.add_argument("--megabytes", type=float, default=4.0)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    run = partial(_run, megabytes=given.megabytes, streams=given.streams, rounds=given.rounds)
    run_beside_server(PORT, STEP_S, ["--served-model-name", "bundled"], run)


if __name__ == "__main__":
    main()
