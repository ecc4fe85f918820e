"""Table of planted bugs: what each breaks, and by which named check, and where, it is found.

Kept in a `PLANTED.md`, which `python -m triolet.fuzz simulate --bugs --table` writes anew. A bug
is found again by one simulation, that of its row.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import attrs

from ..fuzzer import AnyFuzzer, draw_round

BY_HAND = "plan by hand"
# Names of checks, and what they say when they fail; the first that fits.
CHECKS: dict[str, str] = {
    "exactly once: each token once, in order, and none after the end": (
        r" goes on after |: tokens \[.*\] at \d+ of choice \d+, before |: counts \d+ tokens"
    ),
    "credit: no token beyond what a client allows": r" tokens, and credit for ",
    "identity: tokens, logprobs and end are the undisturbed run's": (
        r": tokens \[.*\] at \d+ of choice \d+, not | ended by | ended after \d+ tokens"
        r"|: logprobs |, and was further before|ended without its last output|^request-\d+: "
    ),
    "other numerics only where asked for": r" goes on inexactly",
    "one end: every stream ends in bounded time": r"streams without end",
    "survival: no stream ends while an engine can go on with it": (
        r" ended, and .* served | did not wait for an engine| is not there any more"
    ),
    "silence: streams of a silent engine go on at another": r" stalls at ",
    "forms: each is answered, as it is, while there is a form process": (
        r": its form (waits|was refused|was not refused)|forms of frontend \d+ wait"
    ),
    "order: links and ledgers see each message once, in order": (
        r"outputs out of order|on the links of a frontend|was sent an attempt twice"
    ),
    "adoption: all that a client was offered is in the journal": (
        r" was offered | is not in the journal|its journal does not say so"
    ),
    "adoption: nothing that is over comes again": r"and comes again|and cannot be resumed",
    "bound: a stream ends few frontends, and few engines": (
        r" has ended \d+ (frontends|engines)$|frontends that adopted it|given up, and ended no"
    ),
    "blame: suspects are those that a step had": r"suspected of|, and had no ",
    "blame: poison is refused, the innocent are not": r"refused|is a suspect still",
    "accounts: every block is free when all streams have ended": r" of \d+ blocks$",
    "accounts: no request is left without a client": (
        r"has requests that nobody wants|has requests without a client|counts \d+ open streams"
    ),
    "accounts: all know who is there, and count with no other": (
        r"does not know who|counts with dead|keeps links to dead|sends to |is not there$|boots$"
    ),
    "fencing: each life has an epoch of its own": r"came with epoch|is there \d+ times",
    "boot: a frontend serves in bounded time": r"no frontend serves",
    "processes: none is killed without cause, none is left": (
        r"had not stopped|left behind|stopped and not ended|killed in good order"
    ),
    "KV memory: each context is read back as it was computed": (
        r"another request's KV|never computed for this row|block is in two|that grows is shared"
    ),
}
# Where nothing of these fits: assertions of the runtime's own parts, and whatever else ends one.
INVARIANT = "invariants: every part of the runtime keeps its own"
ERROR = "errors: no part of the runtime ends by one that no fault explains"


def check_of(error: BaseException, checks: Mapping[str, str] = CHECKS) -> str:
    """Which check found it."""
    said = str(error).partition("\n")[0]
    for name, pattern in checks.items():
        if re.search(pattern, said):
            return name
    return INVARIANT if isinstance(error, AssertionError) else ERROR


@attrs.frozen
class PlantedRow:
    """One planted bug. `found` is the round that found it, the last of so many simulations; None
    for a plan by hand.
    """

    bug: str
    breaks: str
    check: str
    found: int | None
    simulations: int

    def __str__(self) -> str:
        where = BY_HAND if self.found is None else f"{self.found}"
        return f"| {self.bug} | {self.breaks} | {self.check} | {where} | {self.simulations} |"


@attrs.frozen
class Hunt:
    """What looks for planted bugs: a fuzzer whose faults they are, or plans drawn by hand for those
    that its own seldom meet. `command` is that of its campaigns, `table` where its finds are kept.
    """

    fuzzer: AnyFuzzer
    # Runs events, perhaps with a bug, and gives what was reached, and a digest of its trace.
    simulate: Callable[..., Any]
    bugs: Mapping[str, Any]
    # {bug: what it breaks}, {check: what it says}
    breaks: Mapping[str, str]
    checks: Mapping[str, str]
    by_hand: Mapping[str, Callable[[Random, int], list[Any]]]
    table: str
    command: str

    def patient_for(self, bug: str) -> AnyFuzzer:
        """The fuzzer with all bugs as its faults, and the plan by hand for this one, if any."""
        draw = self.by_hand.get(bug, self.fuzzer.draw)
        return attrs.evolve(self.fuzzer, faults=self.bugs, draw=draw)

    def events_of(self, bug: str, seed: int, number: int) -> list[Any]:
        """The round that looks for this bug."""
        return draw_round(self.patient_for(bug), seed, number)

    @property
    def path(self) -> Path:
        """Of its table."""
        return Path(__file__).parents[1] / self.table


def render(rows: Iterable[PlantedRow], seed: int, hunt: Hunt) -> str:
    """The table as Markdown."""
    rows, name = list(rows), hunt.fuzzer.name
    return "\n".join(
        [
            "# Planted bugs",
            "",
            f"{len(rows)} rules of the runtime, each broken by a switch that only the self-test"
            " can set, and the check of the simulator that finds it.",
            f"Written by `python -m triolet.fuzz {hunt.command} --bugs --table`; the tests compare"
            " it with the list of bugs, and find each anew by the simulation of its row.",
            "",
            f"Rounds are of seed {seed}: `python -m triolet.fuzz {name} --seed {seed} --round N`"
            " runs one (without the bug).",
            "",
            "| bug | breaks | found by | in round | simulations |",
            "|---|---|---|---|---|",
            *map(str, rows),
            "",
        ]
    )


def kept_rows(text: str) -> list[PlantedRow]:
    """What the table says."""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] != "bug":
            where = None if cells[3] == BY_HAND else int(cells[3])
            rows.append(PlantedRow(cells[0], cells[1], cells[2], where, int(cells[4])))
    return rows


# What happens to clients, or to a server, in plain words.
BREAKS: dict[str, str] = {
    "a replay forgets what was delivered": "a replay begins at the first token again",
    "a replay is one token behind": "a replay begins one token too early",
    "a replay has the first credit": "a replay may compute less than its client allows by now",
    "RESYNC asks for one too far": "resume index + 1: a token is left out after a lost link",
    "RESYNC asks for one again": "resume index - 1: a token comes twice after a lost link",
    "RESYNC wants nothing": "a link that comes again aborts all requests of its frontend",
    "unknown requests are not sent again": "what was lost on the way to an engine never runs",
    "a finish with a token is lost": "a stream whose end comes with a token never ends",
    "a replay knows no grant": "credit that was granted is forgotten by a replay",
    "a dead engine's counts stay": "load of a dead epoch is balanced by",
    "a dead engine stays if it was the last": "requests go to an engine that is gone",
    "a link begins without RESYNC": "engine and frontend go on with different lists of requests",
    "silence is not noticed": "streams stand still as long as a cable is cut",
    "streams of a silent engine wait for it": "streams stand still as long as a cable is cut",
    "a silent engine is forgotten": "an engine that was only slow is never used again",
    "who is heard again gets nothing": "an engine that was only slow is never used again",
    "a stream that is left is not aborted": "an engine computes for a client that has left",
    "credit is never granted": "a stream stands still at the end of its window",
    "attempts have no bound": "one request ends engine after engine for ever",
    "a replay goes to other numerics": "a stream goes on with tokens of another kind of engine",
    "other tokens come without an event": "an inexact continuation is not announced",
    "other tokens come, and were not asked for": "an inexact continuation without consent",
    "a stream waits for no engine": "a stream ends at once where an engine would come back",
    "a refusal for draining ends a stream": "a drain ends a stream",
    "what leaves a queue is computed there, too": "an engine computes what another one has",
    "an engine keeps what is not wanted": "a lost abort is never made good",
    "an engine sends all again": "an engine repeats tokens that were delivered",
    "a block is leaked": "KV memory is lost with each longer request",
    "blocks outlive their worker": "blocks of a dead worker are taken for computed ones",
    "a block keeps its name": "a block that is used anew is found as a prefix of before",
    "names of another memory are believed": "a new worker's empty memory is taken for the old",
    "a head is true before its names are": "a death while names are cleared leaves wrong ones",
    "a step begins before it is written down": "a death in a step has no suspects",
    "a step that is over is in the table": "requests are suspected of what came after them",
    "a lost step stays in the table": "requests are suspected of a step that was given up",
    "who is killed has suspects": "a kill from outside is blamed on requests",
    "each of many is blamed alone": "company counts as proof: the innocent are refused",
    "deaths count wherever they were": "whoever was there at three deaths is refused",
    "poison is never refused": "a request that crashes engines is sent for ever",
    "what is refused is computed": "a request that was refused crashes another engine",
    "suspects run with others": "poison takes the innocent along again",
    "who has passed is a suspect still": "a request is suspected of what it has outlived",
    "a stop is taken for a hang at once": "a process is killed for a short stop",
    "a hang is not ended": "a process that hangs stays for ever",
    "a dead frontend's requests run on": "an engine computes for a frontend that is dead",
    "a new frontend is not connected": "engines do not connect to a frontend's next life",
    "a duplicate is delivered": "a frame that came twice counts twice",
    "a gap is not missed": "a lost frame is not asked for again",
    "an old generation counts": "missing check of generations: a late frame of a lost link counts",
    "a lost tail is never asked after": "the last frame before a silence is lost for good",
    "a forgotten peer is not fenced, nor forgotten": (
        "missing check of epochs: a dead engine's late frames count"
    ),
    "a successor has an epoch again": "two lives of an engine cannot be distinguished",
    "a successor has a term again": "two lives of a frontend cannot be distinguished",
    "a form is lost with its form process": "a request waits for a check that nobody makes",
    "a check that crashes is checked again": "a form that crashes the library is never refused",
    "a new form process has no link": "forms of its frontend wait after its first death",
    "tokens are offered before they are written down": "journal after offer: tokens come anew",
    "an end is written down after its token": "a death between leaves a stream without its end",
    "a placement is written down too late": "an adopter does not know which engine has a stream",
    "a stream is admitted before it is written down": "an admitted stream is gone after a death",
    "an end is not written down": "a stream that is over goes on in the next life",
    "what is forgotten is kept": "a response that was deleted comes again",
    "a client's credit is not written down": "an adopted stream waits for credit that was given",
    "a snapshot has no logprobs": "an adopted stream lost its logprobs",
    "a snapshot has no credit": "an adopted stream forgot what its client allows",
    "a snapshot has no tokens": "an adopted stream begins anew, and so does its grammar",
    "a snapshot mixes choices up": "adopted choices have each other's tokens",
    "a journal is freed before that is known": "a reader begins where nothing is left",
    "a journal is freed before a snapshot is there": "a death between loses a whole stream",
    "deaths of adopters are not counted": "one stream ends every life that adopts it",
    "a kill counts as a stream's": "two kills from outside end an innocent stream",
    "an adopted stream is a token behind": "resume index - 1: a token comes twice after a death",
    "an adopted stream is a token ahead": "resume index + 1: a token is left out after a death",
    "an adopted stream's journal has its own list": "a second death loses what came after a first",
    "a stop string's beginning is not adopted": "a stop string across a death is not found",
    "adopted streams are in another order": "RESYNC names requests in another order than sent",
    "an adopted stream has no numerics": "after two deaths a stream goes to any engine",
    "what cannot be resumed goes on": "an adopter computes for clients that cannot come back",
    "adopters do not know who has gone": "a stream of a dead engine waits for it for ever",
    "RESYNC before the ledger is rebuilt": (
        "adoption before fence: an empty ledger aborts what is adopted"
    ),
    "a term has the attempts of another": "an attempt's number is used twice",
    "the dead may speak": "a message of a dead frontend counts in its successor's place",
    "a journal is another rank's": "a frontend adopts the streams of another",
    "each life has a journal of its own": "a successor finds no journal",
    "a stream's end is not reported": "the root counts it for ever, and waits for it",
    "a frontend that has served is given up": "its streams end, and its clients find nobody",
}
