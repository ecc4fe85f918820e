"""Cost of an idle server: start to ready, memory, idle CPU.

Its spares (a second engine, worker and frontend) are in the tables.

    python -m triolet.bench server_tree

Starts `triolet serve` with the bundled model, reads /proc, and stops it again.
"""

import json
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

from ...fuzz.observers import costs_of_tree, cpu_spent
from .words import argument_parser

ROUNDS = 3
IDLE_S = 10.0
# By then a server has its spares, which import for a second or two of CPU time.
SETTLED_S = 6.0
PORT = 8877


def _ready() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/ready", timeout=5) as answer:
            return bool(json.load(answer)["ready"])
    except (urllib.error.URLError, OSError):
        return False


def main() -> None:
    """Print the tables."""
    argument_parser(__doc__).parse_args()
    boots = []
    command = [sys.executable, "-m", "triolet", "serve", "--port", str(PORT)]
    for round_number in range(ROUNDS):
        began_s = time.perf_counter()
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
            try:
                while not _ready():
                    assert server.poll() is None, "the server ended"
                boots.append(time.perf_counter() - began_s)
                if round_number == ROUNDS - 1:
                    _report_idle(server.pid)
            finally:
                server.send_signal(signal.SIGINT)
                server.wait()
    spread = f"{min(boots):.2f} to {max(boots):.2f}; target ≤ 5"
    print(f"start to ready  {statistics.median(boots):.2f} s ({spread})")


def _wait(seconds: float) -> None:
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        signal.sigtimedwait([], max(0.0, deadline - time.perf_counter()))


def _report_idle(pid: int) -> None:
    _wait(SETTLED_S)
    before, began_s = costs_of_tree(pid), time.perf_counter()
    _wait(IDLE_S)
    after, elapsed_s = costs_of_tree(pid), time.perf_counter() - began_s
    spent = cpu_spent(before, after)
    print(f"idle for {elapsed_s:.0f} s        resident MiB    % of a core")
    for name, cost in after.items():
        print(f"  {name:20} {cost.resident_mib:10.0f} {spent[name] / elapsed_s * 100:14.2f}")
    total = sum(spent.values()) / elapsed_s * 100
    print(
        f"  {'all':20} {sum(c.resident_mib for c in after.values()):10.0f} {total:14.2f}"
        "   target < 1"
    )


if __name__ == "__main__":
    main()
