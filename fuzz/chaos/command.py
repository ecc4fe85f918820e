"""The chaos command: a server, a campaign on it, and the report.

What comes is a deck of all kinds of faults, one after the other (`campaign`), or, where the profile
is one of kills, processes dying at random moments (`kills`). The root is killed last.
"""

import hashlib
import pathlib
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import trio
from rich.console import Console

from ...api.commands.exits import errors_as_sentences, until_terminated
from ...api.commands.figures import check_file, check_target, shows_table, write_figures
from ...api.commands.options import FLAT
from ...engine.errors import InvalidParameter
from ...nurseries.tasks.service import single_error
from ..observers import NotInTime
from .campaign import Campaign, log_violations
from .clients import Lost
from .fault_plan import Fault, FaultKind, digest, make_plan
from .history import Violation
from .kills.kill_plan import Kill, count_by_kind, make_kills
from .kills.storm import run_kills
from .learning import learn_apart
from .load import PROBES
from .options import ChaosOptions
from .report.merging import CannotMerge, SavedReport, merged, read_report
from .report.report import Report
from .served_run import JOURNAL, open_served_run
from .target.target_campaign import run_target

EXIT_GREEN, EXIT_RED = 0, 1
CHAOS = ChaosOptions()
# Of the table, where it goes to no terminal.
COLUMNS = 170
# What runs: the package, as it is installed or checked out.
PACKAGE = pathlib.Path(__file__).parents[2].resolve()
SOURCES = frozenset({".py", ".cpp", ".h"})
NO_SOURCES = frozenset({"tests", ".venv", ".cache", ".git"})


async def run_campaign(options: ChaosOptions) -> Report:
    """Run it to its end. Raises `Lost` or `NotInTime` if the run does not even come up.

    Cancellation: the run is stopped, nothing of it is left.
    """
    kills: list[Kill] = []
    faults: list[Fault] = []
    if options.is_storm:
        ranks = min(options.engines, options.frontends)
        kills = make_kills(options.seed, options.count, ranks=ranks)
    else:
        faults = plan_of(options)
    planned = count_by_kind(kills) if kills else _count(faults)
    report = Report(options.seed, digest(kills or faults), options.words_of_replay(), planned)
    report.began_s = began_s = trio.current_time()
    with tempfile.TemporaryDirectory(prefix="triolet-chaos-") as folder:
        path = pathlib.Path(folder)
        answers = await learn_apart(options, path) if options.unlike else []
        words, program = options.words_of_serve(), options.program()
        if options.has_disk:
            words += ["--journal", str(path / JOURNAL)]
        async with open_served_run(path, words, program) as run:
            campaign = Campaign(options, run, report, answers)
            try:
                await campaign.begin()
                report.began_s = trio.current_time()
                if kills:
                    await run_kills(campaign, kills)
                else:
                    await campaign.run_faults(faults)
                await campaign.kill_root()
            except* NotInTime as group:  # what did not come back ends the campaign, in red
                report.violations.append(Violation("I8", str(single_error(group))))
            report.violations += log_violations(run.log())
    report.seconds = trio.current_time() - began_s
    return report


def plan_of(options: ChaosOptions) -> list[Fault]:
    """The faults of a campaign that is none of kills."""
    return make_plan(
        options.seed,
        options.count,
        engines=options.engines,
        frontends=options.frontends,
        scripts=len(PROBES),
        workers=options.workers,
        kinds=options.kinds(),
    )


def _count(faults: Sequence[Fault]) -> dict[str, int]:
    """{kind: how many}, in the order in which kinds are listed."""
    counts = Counter(fault.kind for fault in faults)
    return {str(kind): counts[kind] for kind in FaultKind if counts[kind]}


def chaos(*, options: Annotated[ChaosOptions, FLAT] = CHAOS) -> None:
    """`triolet chaos`: exits with the code of `run_chaos`."""
    with errors_as_sentences(Lost, NotInTime):
        raise SystemExit(run_chaos(options))


def run_chaos(options: ChaosOptions) -> int:
    """Run the campaign and print what it showed; the exit code."""
    check_target(options.json)
    if options.picture:
        check_file("picture", options.picture)
    if options.merge:
        report = merge_files(options.merge)
    else:
        run = run_target if options.target else run_campaign
        report = trio.run(until_terminated, partial(run, options))
        report.code = digest_of_code()
    if shows_table(options.json):
        show(report)
    if options.picture:
        pathlib.Path(options.picture).write_text(report.picture())
    write_figures(options.json, {"command": "chaos", **report.as_json()})
    return exit_code(report)


def merge_files(paths: Sequence[str]) -> Report:
    """The sum of the reports in these files. Raises `InvalidParameter`."""
    parts: list[SavedReport] = []
    for path in paths:
        try:
            parts.append(read_report(pathlib.Path(path).read_bytes()))
        except (OSError, CannotMerge) as error:
            raise InvalidParameter("merge", f"{path}: {error}") from None
    try:
        return merged(parts)
    except CannotMerge as error:
        raise InvalidParameter("merge", str(error)) from None


def digest_of_code() -> str:
    """Tells the package's sources from all others."""
    found = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in SOURCES and not set(path.relative_to(PACKAGE).parts) & NO_SOURCES:
            found.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def exit_code(report: Report) -> int:
    """Of the command."""
    return EXIT_GREEN if report.is_green() else EXIT_RED


def show(report: Report) -> None:
    """The table, and in sentences what it does not hold."""
    console = Console(width=None if sys.stdout.isatty() else COLUMNS)
    console.print(report.table())
    for sentence in report.sentences():
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
