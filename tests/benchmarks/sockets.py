"""What a token costs over WebSocket, SSE and chat; unmerged, and merged for slow readers.

    python -m tests.benchmarks sockets

64 streams, the null executor at 100 steps a second, so that nothing is saturated and each token is
an event of its own. Merged: clients that read every other second, so that what waits is merged. CPU
of the frontend per token; beside it that of the other processes. Medians of some rounds.
"""

import statistics

from triolet.fuzz.load.options import Protocol
from triolet.fuzz.load.schedule import Load

from .serving import Serving, costs, open_server, print_costs, print_machine

STREAMS = 64
TOKENS = 500
ROUNDS = 2
READ_EVERY_S = 2.0


def main() -> None:
    """Print the table."""
    print_machine()
    print("CPU of the frontend per token (vLLM over HTTP/SSE: 60–72 µs), then of the others")
    with open_server("--null-step", "0.01", "--max-num-seqs", str(STREAMS)) as server:
        server.press(Load(requests=STREAMS, in_flight=STREAMS, tokens=20), Protocol.LANES)
        _print(server, "WebSocket, unmerged", Protocol.LANES, "target ≤ 25")
        _print(server, "WebSocket, merged", Protocol.LANES, "target ≤ 5", READ_EVERY_S)
        _print(server, "SSE, unmerged", Protocol.SSE, "no target")
        _print(server, "chat, unmerged", Protocol.CHAT, "no target")


def _print(
    server: Serving, title: str, protocol: Protocol, target: str, read_every_s: float = 0.0
) -> None:
    load = Load(requests=STREAMS, in_flight=STREAMS, tokens=TOKENS)
    figures = [server.press(load, protocol, read_every_s=read_every_s) for _ in range(ROUNDS)]
    merged = statistics.median([each.tokens_per_delta for each in figures])
    by_process = costs(figures, [each.output_tokens for each in figures])
    print_costs(f"{title} ({merged:.1f} a delta)", by_process, target)


if __name__ == "__main__":
    main()
