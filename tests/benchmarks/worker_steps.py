"""Steps through engine, ring and worker, with what hides behind what.

    python -m tests.benchmarks worker_steps

So many requests decode together; *every* is from one step's computing to the next one's, *compute*
the executor's part of it, *gap* the time in which the worker idles. With one compute thread the
other core is the engine's; with two they share. `triolet bench timeline MODEL` draws it.
"""

import trio

from triolet.fuzz.bench.machine import look_at_machine
from triolet.fuzz.bench.options import TimelineOptions
from triolet.fuzz.bench.shapes import SHAPES, shape_folder
from triolet.fuzz.bench.timeline_run import record_timeline

PROMPT, TOKENS = 512, 96
RUNNING = (1, 8, 64)
# {(shape, running): ms}, of a step through the worker.
TARGETS = {("tiny", 1): 0.2, ("tiny", 64): 3.3}


async def run() -> None:
    """Print the table."""
    print(look_at_machine().describe())
    print("ms: shape, threads, running | every, compute, gap | engine's work, of it hidden")
    for name, shape in SHAPES.items():
        for threads in (1, 2):
            for running in RUNNING:
                options = TimelineOptions(running=running, prompt_tokens=PROMPT, tokens=TOKENS)
                engine = {"threads": threads}
                folder = str(shape_folder(shape))
                found = (await record_timeline(folder, options, engine=engine)).figures
                target = TARGETS.get((name, running))
                print(
                    f"{name:6} {threads} {running:3} | {found.period_us / 1e3:8.3f}"
                    f" {found.spans_us['compute'] / 1e3:8.3f} {found.gap_us / 1e3:7.3f} |"
                    f" {found.engine_work_us / 1e3:6.3f} {found.engine_hidden_share * 100:3.0f} %"
                    + (f"   target ≤ {target}" if target else ""),
                    flush=True,
                )


if __name__ == "__main__":
    trio.run(run)
