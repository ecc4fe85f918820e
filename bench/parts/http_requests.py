"""Rate of requests of one token over HTTP, 64 at a time.

python -m triolet.bench http_requests
"""

import statistics

from ..load.schedule import Load
from ..options import Protocol
from .calibration import Calibration, Target, take_blocks_sync
from .serving import costs, open_server, print_costs
from .words import argument_parser

REQUESTS = 3000
IN_FLIGHT = 64
ROUNDS = 5
TARGET_S = Target(1500, at_least=True)


def main() -> None:
    """Print the table."""
    argument_parser(__doc__).parse_args()
    calibration, figures = Calibration(), []
    load = Load(requests=REQUESTS, in_flight=IN_FLIGHT, tokens=1)
    with open_server("--max-num-seqs", str(IN_FLIGHT)) as server:
        server.press(load, Protocol.HTTP)  # warms up
        take_blocks_sync(calibration)
        for _ in range(ROUNDS):
            figures.append(server.press(load, Protocol.HTTP))
            print(f"  a round: {figures[-1].requests_per_s:.0f}/s", flush=True)
            take_blocks_sync(calibration)
    rates = [each.requests_per_s for each in figures]
    median = statistics.median(rates)
    print(
        f"requests of one token, {IN_FLIGHT} in flight: {median:.0f}/s"
        f" ({min(rates):.0f} to {max(rates):.0f}; vLLM 620)"
        f" {TARGET_S.verdict(median, calibration.factor())}"
    )
    print(calibration.describe())
    print_costs("CPU of the frontend per request", costs(figures, [REQUESTS] * ROUNDS))


if __name__ == "__main__":
    main()
