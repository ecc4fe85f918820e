"""Runs the benchmarks: all of them, or those that are named; each in a process of its own.

    make bench
    python -m tests.benchmarks whole_path step_ring

Figures are medians where it matters and never asserted: speed belongs here, not into a timed test.
"""

import subprocess
import sys

BENCHMARKS = (
    "whole_path",
    "frontend",
    "sockets",
    "http_requests",
    "many_streams",
    "server_tree",
    "bridge",
    "step_ring",
    "engine_core",
    "masks",
    "kernels",
    "experts",
    "sampling",
    "worker_steps",
    "offline",
    "peers",
    "memory",
    "torch_executor",
)


def main() -> None:
    """Run them one after another; two at once would measure each other."""
    names = sys.argv[1:] or BENCHMARKS
    for name in names:
        if name not in BENCHMARKS:
            sys.exit(f"no benchmark {name!r}; there are: {', '.join(BENCHMARKS)}")
        print(f"\n== {name}", flush=True)
        subprocess.run([sys.executable, "-m", f"tests.benchmarks.{name}"], check=True)


if __name__ == "__main__":
    main()
