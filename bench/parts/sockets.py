"""Cost of a token over WebSocket, SSE and chat, each an event of its own or merged; of a request.

    python -m triolet.bench sockets

64 streams, the null executor at 100 steps a second, so that nothing is saturated and each token is
an event of its own, unless a request asks for merge windows. Then the same at full speed, where
what waits for the writer is merged anyway; and requests of one token over HTTP, whole. CPU of the
frontend per token or request; beside it that of the other processes, and how many tokens an event
brought. Medians of some rounds; before and after each the machine is calibrated.
"""

import statistics

from ..load.measures import Measures, Series
from ..load.schedule import Load
from ..options import Protocol
from .calibration import Calibration, Target
from .serving import Serving, costs, open_server, print_costs
from .words import argument_parser

STREAMS = 64
# Length of an answer: three seconds at 100 steps a second; at full speed a second or less.
TOKENS = 300
ROUNDS = 2
MERGE_MS = 100
UNMERGED_US, MERGED_US = Target(25), Target(5)
REQUESTS, REQUEST_ROUNDS = 3000, 5
REQUESTS_S = Target(1500, at_least=True)


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
        _print_requests(server)


def _warm_up(server: Serving) -> None:
    server.press(Load(requests=STREAMS, in_flight=STREAMS, tokens=20), Protocol.LANES)


def _rounds(
    server: Serving, load: Load, protocol: Protocol, count: int
) -> tuple[list[Measures], Calibration]:
    calibration, figures = Calibration(), []
    calibration.take()
    for _ in range(count):
        figures.append(server.press(load, protocol))
        calibration.take()
    return figures, calibration


def _print(
    server: Serving,
    title: str,
    protocol: Protocol,
    target: Target | None = None,
    *,
    merge_ms: int = 0,
) -> None:
    load = Load(requests=STREAMS, in_flight=STREAMS, tokens=TOKENS, merge_ms=merge_ms)
    figures, calibration = _rounds(server, load, protocol, ROUNDS)
    merged = statistics.median([each.tokens_per_delta for each in figures])
    by_process = costs(figures, [each.output_tokens for each in figures])
    print_costs(f"{title} ({merged:.1f} an event)", by_process)
    if target is not None:
        print(f"  {target.verdict(by_process['frontend'], calibration.factor())}")
    print(f"  {calibration.describe()}", flush=True)


def _print_requests(server: Serving) -> None:
    load = Load(requests=REQUESTS, in_flight=STREAMS, tokens=1)
    server.press(load, Protocol.HTTP)  # warms up
    figures, calibration = _rounds(server, load, Protocol.HTTP, REQUEST_ROUNDS)
    rates = Series.of([each.requests_per_s for each in figures])
    print(f"requests of one token, {STREAMS} in flight, a second: {rates.text()} (vLLM 620)")
    print(f"  {REQUESTS_S.verdict(rates.median, calibration.factor())}")
    print(f"  {calibration.describe()}")
    print_costs("CPU of the frontend per request", costs(figures, [REQUESTS] * REQUEST_ROUNDS))


if __name__ == "__main__":
    main()
