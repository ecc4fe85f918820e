"""Kills processes of `triolet serve` under load, and compares every answer.

    python -m tests.kills [--engines N] [--kills N] [--victims engine worker] [--json FILE] …
    python -m tests.kills --of frontends          [--frontends 1] connections go on
    python -m tests.kills --of frontends --connections resume     clients come back by number
    python -m tests.kills --of frontends,engines  one of each in the same millisecond
    python -m tests.kills --of rolling            [--rounds 10] `triolet restart --rolling`
    python -m tests.kills --layers 4      a model as slow as its clients: kills hit whole batches

The load is the unmodified `openai` SDK: 64 lanes on 4 sockets, 8 chats and 8 streamed responses,
200 tokens each, sampled with seeds, with penalties, logprobs, stop strings, schemas, functions,
split characters and choices. Each answer must be that of a server that nothing happened to: tokens,
text, logprobs, calls, events, usage; in the end every KV block is free, and no request was executed
twice. Gaps are what clients saw. Exit code 1 if one answer was another or none. A connection that
breaks is a failure, but with `--connections resume`: then the server does without takeover.
"""

import argparse
import json
import pathlib
import sys
from functools import partial

import attrs
import trio

from triolet.api.commands.exits import until_terminated

from .campaign import (
    ENGINE,
    FRONTEND,
    FRONTEND_WITH_ENGINE,
    KEPT,
    RESUME,
    WORKER,
    KillOptions,
    run_kills,
)

# Twenty threads read: none may keep the others waiting for as long as Python lets it.
SWITCH_S = 0.0005
DEFAULTS = KillOptions()
OF_FRONTENDS = attrs.evolve(DEFAULTS, frontends=2, victims=(FRONTEND,))
OF = {
    "engines": DEFAULTS,
    "frontends": OF_FRONTENDS,
    "frontends,engines": attrs.evolve(OF_FRONTENDS, kills=100, victims=(FRONTEND_WITH_ENGINE,)),
    # A socket that drains ends in order when it is idle, and its client opens another.
    "rolling": attrs.evolve(OF_FRONTENDS, rounds=10),
}


def main() -> None:
    """Run it and print what it showed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.kills",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--of", choices=OF, default="engines", help="what is killed")
    for name in (
        "engines",
        "frontends",
        "kills",
        "rounds",
        "lanes",
        "sockets",
        "streams",
        "tokens",
    ):
        parser.add_argument(f"--{name}", type=int)
    for name in ("seed", "layers"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--period", dest="period_s", type=float)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--victims", nargs="+", choices=(ENGINE, WORKER))
    parser.add_argument("--connections", choices=(KEPT, RESUME))
    parser.add_argument("--serve", nargs=argparse.REMAINDER, help="more of its options")
    parser.add_argument("--json", type=pathlib.Path)
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    target, defaults = given.pop("json", None), OF[given.pop("of")]
    for name in ("victims", "serve"):
        given[name] = tuple(given.get(name, getattr(defaults, name)))
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
