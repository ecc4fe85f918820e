"""Kills processes of `triolet serve` under load, and compares every answer.

    python -m tests.kills [--engines N] [--kills N] [--victims engine worker] [--json FILE] …
    python -m tests.kills --of frontends          [--frontends 1] connections go on
    python -m tests.kills --of frontends --connections resume     clients come back by number
    python -m tests.kills --of frontends,engines  one of each in the same millisecond
    python -m tests.kills --of rolling            [--rounds 10] `triolet restart --rolling`
    python -m tests.kills --of hosts      [--hosts 3] machines are switched off, cut off, killed
    python -m tests.kills --layers 4      a model as slow as its clients: kills hit whole batches
    python -m tests.kills --clients raw   [--kills 10000] processes of any tier at random moments

The load is the unmodified `openai` SDK: 64 lanes on 4 sockets, 8 chats and 8 streamed responses,
200 tokens each, sampled with seeds, with penalties, logprobs, stop strings, schemas, functions,
split characters and choices. Each answer must be that of a server that nothing happened to: tokens,
text, logprobs, calls, events, usage; in the end every KV block is free, and no request was executed
twice. Gaps are what clients saw. Exit code 1 if one answer was another or none. A connection that
breaks is a failure, but with `--connections resume`: then the server does without takeover.

Raw clients are those of `triolet chaos`, and cheap: kills come half a second after each other, one
to five processes at once, whatever is being restarted; what grows is measured, too. The root is
killed last. Options for them: engines, frontends, kills, minutes, seed, patience, picture, json.
"""

import argparse
import json
import pathlib
import sys
from functools import partial
from typing import Any

import attrs
import trio

from triolet.api.commands.exits import until_terminated
from triolet.fuzz.chaos.command import exit_code, run_campaign, show

from .campaign import (
    ENGINE,
    FRONTEND,
    FRONTEND_WITH_ENGINE,
    HOST,
    KEPT,
    RESUME,
    WORKER,
    KillOptions,
    run_kills,
)
from .hosts import run_host_kills
from .storm import StormOptions, StormPlan

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
    "hosts": attrs.evolve(DEFAULTS, kills=400, victims=(HOST,), lanes=16, streams=16),
}
SDK, RAW = "sdk", "raw"
COUNTS = (
    "engines",
    "frontends",
    "hosts",
    "kills",
    "rounds",
    "lanes",
    "sockets",
    "streams",
    "tokens",
)


def parsed() -> dict[str, Any]:
    """Options that are given."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.kills",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--clients", choices=(SDK, RAW), default=SDK)
    parser.add_argument("--of", choices=OF, help="what is killed")
    for name in (*COUNTS, "seed", "layers"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("minutes", "patience"):
        parser.add_argument(f"--{name}", type=float)
    parser.add_argument("--period", dest="period_s", type=float)
    victims = (ENGINE, WORKER, FRONTEND, FRONTEND_WITH_ENGINE)
    parser.add_argument("--victims", nargs="+", choices=victims)
    parser.add_argument("--connections", choices=(KEPT, RESUME))
    parser.add_argument("--serve", nargs=argparse.REMAINDER, help="more of its options")
    for name in ("json", "picture"):
        parser.add_argument(f"--{name}", type=pathlib.Path)
    return {name: value for name, value in vars(parser.parse_args()).items() if value is not None}


def main() -> None:
    """Run it and print what it showed."""
    given = parsed()
    target, picture = given.pop("json", None), given.pop("picture", None)
    if given.pop("clients") == RAW:
        storm = StormOptions(**{{"kills": "faults"}.get(name, name): given[name] for name in given})
        report = trio.run(until_terminated, partial(run_campaign, storm, StormPlan.of(storm)))
    else:
        defaults = OF[given.pop("of", "engines")]
        for name in ("victims", "serve"):
            given[name] = tuple(given.get(name, getattr(defaults, name)))
        sys.setswitchinterval(SWITCH_S)
        options = attrs.evolve(defaults, **given)
        campaign = run_host_kills if HOST in options.victims else run_kills
        run = partial(campaign, options, partial(print, flush=True))
        report = trio.run(until_terminated, run)
    show(report)
    if target is not None:
        target.write_text(json.dumps(report.as_json(), indent=1))
    if picture is not None:
        picture.write_text(report.picture())
    sys.exit(exit_code(report))


if __name__ == "__main__":
    main()
