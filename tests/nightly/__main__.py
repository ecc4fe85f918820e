"""Campaigns in a hundred minutes: each by its own command, its minutes beside a limit.

    make nightly                             all, one after the other, on an idle machine
    python -m tests.nightly hostile chaos    these alone

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
WHOLE_LIMIT_MINUTES: Final = 100
SHOWN_LINES: Final = 40


@attrs.frozen
class Campaign:
    """A command of this interpreter, and the minutes that it may take."""

    name: str
    words: str
    limit_minutes: int


CAMPAIGNS: Final = (
    # 10 001 took 54 minutes on two busy cores.
    Campaign("chaos kills", "-m triolet chaos --profile release --faults 3000", 20),
    Campaign("chaos", "-m triolet chaos --faults 300 --minutes 10", 12),
    Campaign("kills", "-m triolet.tests.kills --minutes 5", 7),
    Campaign("kills of pairs", "-m triolet.tests.kills --of frontends,engines --minutes 3", 5),
    Campaign("rolling restarts", "-m triolet.tests.kills --of rolling --rounds 3", 4),
    Campaign("conformance", "-m triolet.tests.conformance", 3),
    Campaign("bitwise, native", "-m triolet.tests.bitwise --executor native", 3),
    Campaign("bitwise, torch", "-m triolet.tests.bitwise --executor torch", 5),
    Campaign("structured", "-m triolet.tests.structured", 3),
    Campaign("simulate", "-m triolet.fuzz simulate --seeds 1000", 7),
    Campaign("heads", "-m triolet.fuzz heads --events 300000", 2),
    Campaign("bodies", "-m triolet.fuzz bodies --events 300000", 2),
    Campaign("websocket", "-m triolet.fuzz websocket --events 300000", 2),
    Campaign("tokenizer", "-m triolet.fuzz tokenizer --events 100000", 2),
    Campaign("canary", "-m triolet.fuzz canary", 3),
    # Ten places.
    Campaign("poisons", "-m triolet.tests.poisons --minutes 0.6", 11),
    # 10 218 inputs took 256 s.
    Campaign("hostile", "-m triolet.tests.hostile", 7),
)


def ended_after(minutes: int) -> list[str]:
    """Words before a command: end it in order after so many minutes, and kill it a minute later."""
    return ["timeout", "--kill-after=60", f"{minutes}m"]


def run(campaign: Campaign, python: str = sys.executable) -> bool:
    """Run one to its end or its limit; print its minutes, and its last words if it failed."""
    log, began = LOGS / f"{campaign.name}.log", time.monotonic()
    LOGS.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        try:
            code = subprocess.run(
                [*ended_after(campaign.limit_minutes), python, *shlex.split(campaign.words)],
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
    names = parser.parse_args(arguments).names
    unknown = set(names) - {each.name for each in CAMPAIGNS}
    if unknown:
        parser.error(f"no campaign {sorted(unknown)[0]!r}")
    began = time.monotonic()
    green = [run(each) for each in CAMPAIGNS if not names or each.name in names]
    print(f"{sum(green)} of {len(green)} green in {(time.monotonic() - began) / 60:.1f} minutes")
    sys.exit(not all(green))


if __name__ == "__main__":
    main()
