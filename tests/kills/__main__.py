"""Kills engines and workers of `triolet serve` under load, and compares every answer.

    python -m tests.kills [--engines N] [--kills N] [--victims engine worker] [--json FILE] …
    python -m tests.kills --layers 4      a model as slow as its clients: kills hit whole batches

The load is the unmodified `openai` SDK: 64 lanes on 4 sockets and 16 chats, 200 tokens each,
sampled with seeds, with penalties, logprobs, stop strings, schemas, functions and choices. Each
answer must be that of a server that nothing happened to: tokens, text, logprobs, calls, events,
usage. Gaps are what clients saw. Exit code 1 if one answer was another or none.
"""

import argparse
import json
import pathlib
import sys
from functools import partial

import attrs
import trio

from triolet.api.commands.exits import until_terminated

from .campaign import ENGINE, WORKER, KillOptions, run_kills

# Twenty threads read: none may keep the others waiting for as long as Python lets it.
SWITCH_S = 0.0005


def main() -> None:
    """Run it and print what it showed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.kills",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = KillOptions()
    for name, kind in (("engines", int), ("kills", int), ("lanes", int), ("sockets", int)):
        parser.add_argument(f"--{name}", type=kind, default=getattr(defaults, name))
    for name in ("chats", "tokens", "seed", "layers"):
        parser.add_argument(f"--{name}", type=int, default=getattr(defaults, name))
    parser.add_argument("--period", dest="period_s", type=float, default=defaults.period_s)
    parser.add_argument("--victims", nargs="+", choices=(ENGINE, WORKER), default=defaults.victims)
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=(), help="more of its options")
    parser.add_argument("--json", type=pathlib.Path)
    given = vars(parser.parse_args())
    target = given.pop("json")
    given.update(victims=tuple(given["victims"]), serve=tuple(given["serve"]))
    options = attrs.evolve(defaults, **given)
    sys.setswitchinterval(SWITCH_S)
    run = partial(run_kills, options, partial(print, flush=True))
    report = trio.run(until_terminated, run)
    print(*report.lines(), sep="\n")
    if target is not None:
        target.write_text(json.dumps(report.as_json(), indent=1))
    sys.exit(not report.is_green)


if __name__ == "__main__":
    main()
