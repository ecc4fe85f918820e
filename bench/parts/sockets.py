"""Cost of a token over WebSocket, SSE and chat: each an event of its own, or merged.

    python -m triolet.bench sockets

64 streams, the null executor at 100 steps a second, so that nothing is saturated and each token is
an event of its own, unless a request asks for merge windows. Then the same at full speed, where
what waits for the writer is merged anyway. CPU of the frontend per token; beside it that of the
other processes, and how many tokens an event brought. Medians of some rounds; before and after
each the machine is calibrated.
"""

import statistics

from ..load.schedule import Load
from ..options import Protocol
from .calibration import Calibration, Target, take_blocks_sync
from .serving import Serving, costs, open_server, print_costs
from .words import argument_parser

STREAMS = 64
# Length of an answer: three seconds at 100 steps a second; at full speed a second or less.
TOKENS = 300
ROUNDS = 2
MERGE_MS = 100
UNMERGED_US, MERGED_US = Target(25), Target(5)


def main() -> None:
    """Print the table."""
    argument_parser(__doc__).parse_args()
    print("CPU of the frontend per token (vLLM over HTTP/SSE: 60–72 µs), then of the others")
    with open_server("--null-step", "0.01", "--max-num-seqs", str(STREAMS)) as server:
        _warm_up(server)
        _print(server, "WebSocket, unmerged", Protocol.LANES, UNMERGED_US)
        _print(server, "WebSocket, merged", Protocol.LANES, MERGED_US, merge_ms=MERGE_MS)
        _print(server, "SSE, unmerged", Protocol.SSE)
        _print(server, "SSE, merged", Protocol.SSE, merge_ms=MERGE_MS)
        _print(server, "chat, unmerged", Protocol.CHAT)
    with open_server("--max-num-seqs", str(STREAMS)) as server:
        _warm_up(server)
        _print(server, "WebSocket, full speed", Protocol.LANES, UNMERGED_US)
        _print(server, "the same, merged", Protocol.LANES, MERGED_US, merge_ms=MERGE_MS)


def _warm_up(server: Serving) -> None:
    server.press(Load(requests=STREAMS, in_flight=STREAMS, tokens=20), Protocol.LANES)


def _print(
    server: Serving,
    title: str,
    protocol: Protocol,
    target: Target | None = None,
    *,
    merge_ms: int = 0,
) -> None:
    load = Load(requests=STREAMS, in_flight=STREAMS, tokens=TOKENS, merge_ms=merge_ms)
    calibration, figures = Calibration(), []
    take_blocks_sync(calibration)
    for _ in range(ROUNDS):
        figures.append(server.press(load, protocol))
        take_blocks_sync(calibration)
    merged = statistics.median([each.tokens_per_delta for each in figures])
    by_process = costs(figures, [each.output_tokens for each in figures])
    print_costs(f"{title} ({merged:.1f} an event)", by_process)
    if target is not None:
        print(f"  {target.verdict(by_process['frontend'], calibration.factor())}")
    print(f"  {calibration.describe()}", flush=True)


if __name__ == "__main__":
    main()
