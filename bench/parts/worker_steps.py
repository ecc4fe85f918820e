"""Steps through engine, ring and worker, with what hides behind what.

    python -m triolet.bench worker_steps

So many requests decode together; *every* is from one step's computing to the next one's, *compute*
the executor's part of it, *gap* the time in which the worker idles. With one compute thread the
other core is the engine's; with two they share. The target of *every* holds for the machine of the
targets and is not scaled, as most of it is native; that of the engine's work is, by calibration.
`triolet bench timeline MODEL` draws it.
"""

import sys
from collections.abc import Sequence

import trio

from ..options import TimelineOptions
from ..steps.machine import look_at_machine
from ..steps.shapes import SHAPES, shape_folder
from ..steps.timeline import record_timeline
from .calibration import Calibration, Target, take_blocks
from .words import add_shapes, argument_parser

PROMPT, TOKENS = 512, 96
RUNNING = (1, 8, 64)
# {(shape, running): ms}, of a step through the worker.
TARGETS = {("tiny", 1): 0.2, ("tiny", 64): 3.3}
# {running: ms}, of the engine's work in a step.
ENGINE_TARGETS_MS = {64: Target(0.6)}


async def measure(name: str, threads: int, running: int) -> None:
    """Print a line, and another for the engine's target."""
    options = TimelineOptions(running=running, prompt_tokens=PROMPT, tokens=TOKENS)
    folder = str(shape_folder(SHAPES[name]))
    calibration = Calibration()
    await take_blocks(calibration)
    found = (await record_timeline(folder, options, engine={"threads": threads})).figures
    await take_blocks(calibration)
    target = TARGETS.get((name, running))
    work_ms = found.engine_work_us / 1e3
    print(
        f"{name:6} {threads} {running:3} | {found.period_us / 1e3:8.3f}"
        f" {found.spans_us['compute'] / 1e3:8.3f} {found.gap_us / 1e3:7.3f} |"
        f" {work_ms:6.3f} {found.engine_hidden_share * 100:3.0f} %"
        + (f"   target ≤ {target}" if target else "")
    )
    if engine_target := ENGINE_TARGETS_MS.get(running):
        verdict = engine_target.verdict(work_ms, calibration.factor())
        print(f"  engine's work {verdict}\n  {calibration.describe()}")
    sys.stdout.flush()


async def run(names: Sequence[str]) -> None:
    """Print the table."""
    print(look_at_machine().describe())
    print("ms: shape, threads, running | every, compute, gap | engine's work, of it hidden")
    for name in names:
        for threads in (1, 2):
            for running in RUNNING:
                await measure(name, threads, running)


def main() -> None:
    """Run by the command line."""
    parser = argument_parser(__doc__)
    add_shapes(parser)
    trio.run(run, parser.parse_args().shapes)


if __name__ == "__main__":
    main()
