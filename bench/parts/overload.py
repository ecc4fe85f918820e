"""Times of one key's requests alone, and beside another key that floods; ten times the capacity.

    python -m triolet.bench overload [--seconds 45]

Starts `triolet serve` with the null executor, 16 rows and steps of 0.1 s: with 20 tokens each it
answers 8 requests in a second. One key sends 2 in a second, by itself and beside one that sends 80.
"""

import json

import attrs
import trio

from ...api.commands.figures import percentile
from .null_server import run_beside_server, wait_ready
from .words import argument_parser

PORT = 8881
SETTLED_S = 5.0
STEP_S, ROWS, TOKENS = 0.1, 16, 20
CALM_PER_S, FLOOD_PER_S = 2, 80
BODY = json.dumps(
    {"model": "bundled", "prompt": "x", "max_tokens": TOKENS, "ignore_eos": True}
).encode()


@attrs.define
class _Answers:
    """Seconds of those with 200, and the number of all others by status."""

    seconds: list[float] = attrs.field(factory=list)
    refused: dict[str, int] = attrs.field(factory=dict)

    async def ask(self, key: str) -> None:
        """Send one request and read its answer."""
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(BODY)}\r\n\r\n"
        )
        began, answer = trio.current_time(), b""
        async with await trio.open_tcp_stream("127.0.0.1", PORT) as stream:
            await stream.send_all(head.encode() + BODY)
            while part := await stream.receive_some(65536):
                answer += part
        status = answer.split(b" ", 2)[1].decode()
        if status == "200":
            self.seconds.append(trio.current_time() - began)
        else:
            self.refused[status] = self.refused.get(status, 0) + 1

    def row(self, name: str) -> str:
        """The line that is printed."""
        p50, p99 = (
            percentile(sorted(self.seconds), share) if self.seconds else 0 for share in (50, 99)
        )
        refused = ", ".join(f"{count} × {status}" for status, count in self.refused.items())
        return f"{name:28} {len(self.seconds):8} {p50:7.2f} {p99:7.2f}  {refused}"


async def _send(key: str, per_s: int, seconds: float) -> _Answers:
    """Requests at a steady rate; returns when each has its answer."""
    answers = _Answers()
    async with trio.open_nursery() as nursery:
        for _ in range(int(per_s * seconds)):
            nursery.start_soon(answers.ask, key)
            await trio.sleep(1 / per_s)
    return answers


async def _run(seconds: float) -> None:
    await wait_ready(PORT)
    await trio.sleep(SETTLED_S)
    print(f"{'':28} {'answers':>8} {'p50 s':>7} {'p99 s':>7}  refused")
    print((await _send("calm", CALM_PER_S, seconds)).row("calm key alone"), flush=True)
    found: dict[str, _Answers] = {}

    async def send(key: str, per_s: int) -> None:
        found[key] = await _send(key, per_s, seconds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send, "flood", FLOOD_PER_S)
        nursery.start_soon(send, "calm", CALM_PER_S)
    print(found["calm"].row("calm key beside a flood"), flush=True)
    print(found["flood"].row("key that floods"), flush=True)


def main() -> None:
    """Print a row for each key."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=45.0)
    given = parser.parse_args()
    options = ["--served-model-name", "bundled", "--max-num-seqs", str(ROWS)]
    options += ["--api-key", "calm", "--api-key", "flood"]
    run_beside_server(PORT, STEP_S, options, lambda _: _run(given.seconds))


if __name__ == "__main__":
    main()
