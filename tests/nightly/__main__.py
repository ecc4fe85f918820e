"""Campaigns in two hours: each by its own command, its minutes beside a limit.

    make nightly                             all, one after the other, on an idle machine
    python -m tests.nightly hostile chaos    these alone
    python -m tests.nightly --short          the shortest form of each: whether all would start

What a campaign says is in `.cache/nightly/`; of one that fails the end is printed. One that is over
its limit is ended and has failed. Exit code 1 if one failed. `make test` has a short form of each.
"""

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

import attrs

from triolet.tests.house import ROOT

LOGS: Final = ROOT / ".cache" / "nightly"
# For whoever has a night, and a second one for what it shows.
WHOLE_LIMIT_MINUTES: Final = 110
SHOWN_LINES: Final = 40


@attrs.frozen
class Campaign:
    """A module of this interpreter with its options, at night and in short."""

    name: str
    limit_minutes: int
    module: str
    whole: str
    short: str


EVENTS, FEW_EVENTS, FEW_REQUESTS = "--events 300000", "--events 3000", "--requests 8 --tokens 32"
CAMPAIGNS: Final = (
    # 10 001 took 54 minutes on two busy cores; 300 took 2.2 beside six other programs.
    Campaign("chaos kills", 19, "triolet.tests.kills --clients raw", "--kills 3000", "--kills 30"),
    Campaign("chaos", 12, "triolet chaos", "--faults 300 --minutes 10", "--faults 8"),
    Campaign(
        "chaos, unlike",
        2,
        "triolet chaos --executor native --unlike --frontends 1 --only kill-engine",
        "--faults 5",
        "--faults 1",
    ),
    Campaign("chaos, hosts", 8, "triolet chaos --hosts 3", "--faults 44 --minutes 7", "--faults 1"),
    Campaign("kills", 6, "triolet.tests.kills", "--minutes 5", "--kills 4"),
    Campaign(
        "kills of pairs",
        5,
        "triolet.tests.kills --of frontends,engines",
        "--minutes 3",
        "--kills 3",
    ),
    Campaign("rolling restarts", 4, "triolet.tests.kills --of rolling", "--rounds 3", "--rounds 1"),
    # Each task at every checkpoint; `make test` takes some of them.
    Campaign("cancellation", 3, "triolet.tests.cancellation", "", "output-handler"),
    Campaign("conformance", 3, "triolet.tests.conformance", "", "1.1.1 6.4.1"),
    Campaign("bitwise, native", 3, "triolet.tests.bitwise --executor native", "", FEW_REQUESTS),
    Campaign("bitwise, torch", 5, "triolet.tests.bitwise --executor torch", "", FEW_REQUESTS),
    Campaign("structured", 3, "triolet.tests.structured", "", ""),
    Campaign("simulate", 7, "triolet.fuzz simulate", "--seeds 1000", "--seeds 20"),
    Campaign("heads", 2, "triolet.fuzz heads", EVENTS, FEW_EVENTS),
    Campaign("bodies", 2, "triolet.fuzz bodies", EVENTS, FEW_EVENTS),
    Campaign("websocket", 2, "triolet.fuzz websocket", EVENTS, FEW_EVENTS),
    Campaign("tokenizer", 2, "triolet.fuzz tokenizer", "--events 100000", FEW_EVENTS),
    Campaign("canary", 3, "triolet.fuzz canary", "", ""),
    # Ten places; 8.8 minutes beside six other programs.
    Campaign("poisons", 10, "triolet.tests.poisons", "--minutes 0.6", "--minutes 0.2"),
    # Twice as many deaths as restarts, within the minute in which these count.
    Campaign(
        "poisons, others",
        1,
        "triolet.tests.poisons --places mask --turn 5 --vary 2",
        "--minutes 0.2",
        "--minutes 0.1",
    ),
    # 10 225 inputs took 176 s, and 398 beside six other programs.
    Campaign("hostile", 6, "triolet.tests.hostile", "", "--forms 200"),
)


def ended_after(minutes: int) -> list[str]:
    """Words before a command: end it in order after so many minutes, and kill it a minute later."""
    return ["timeout", "--kill-after=60", f"{minutes}m"]


def run(campaign: Campaign, *, is_short: bool = False) -> bool:
    """Run one to its end or its limit; print its minutes, and its last words if it failed."""
    words = shlex.split(f"{campaign.module} {campaign.short if is_short else campaign.whole}")
    log, began = LOGS / f"{campaign.name}.log", time.monotonic()
    LOGS.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        try:
            code = subprocess.run(
                [*ended_after(campaign.limit_minutes), sys.executable, "-m", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        finally:
            minutes = (time.monotonic() - began) / 60
    verdict = "green" if code == 0 else f"FAILED with exit code {code}"
    said = f"{campaign.name:20} {minutes:6.1f} of {campaign.limit_minutes:3} minutes  {verdict}"
    print(said, flush=True)
    if code:
        print(*log.read_text(errors="replace").splitlines()[-SHOWN_LINES:], sep="\n", flush=True)
    return code == 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run those that are named, or all, and exit."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.nightly",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--short", action="store_true", help="whether each starts, ends, is green")
    given = parser.parse_args(arguments)
    names = given.names
    unknown = set(names) - {each.name for each in CAMPAIGNS}
    if unknown:
        parser.error(f"no campaign {sorted(unknown)[0]!r}")
    began = time.monotonic()
    chosen = [each for each in CAMPAIGNS if not names or each.name in names]
    green = [run(each, is_short=given.short) for each in chosen]
    print(f"{sum(green)} of {len(green)} green in {(time.monotonic() - began) / 60:.1f} minutes")
    sys.exit(not all(green))


if __name__ == "__main__":
    main()
