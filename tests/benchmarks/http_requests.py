"""How many requests of one token a server answers over HTTP, 64 at a time.

python -m tests.benchmarks http_requests
"""

import statistics

from triolet.fuzz.load.options import Protocol
from triolet.fuzz.load.schedule import Load

from .serving import costs, open_server, print_costs, print_machine

REQUESTS = 3000
IN_FLIGHT = 64
ROUNDS = 5


def main() -> None:
    """Print the table."""
    print_machine()
    load = Load(requests=REQUESTS, in_flight=IN_FLIGHT, tokens=1)
    with open_server("--max-num-seqs", str(IN_FLIGHT)) as server:
        figures = [server.press(load, Protocol.HTTP) for _ in range(ROUNDS + 1)][1:]
    rates = [each.requests_per_s for each in figures]
    print(
        f"requests of one token, {IN_FLIGHT} in flight: {statistics.median(rates):.0f}/s "
        f"({min(rates):.0f} to {max(rates):.0f}; target ≥ 1500, vLLM 620)"
    )
    print_costs("CPU per request", costs(figures, [REQUESTS] * ROUNDS), "of the frontend")


if __name__ == "__main__":
    main()
