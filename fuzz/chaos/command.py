"""The chaos command: a server, a campaign on it, and the report.

A deck of all kinds of faults comes, one after the other (`campaign`), or what another plan has. The
root is killed last.
"""

import pathlib
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Protocol

import attrs
import trio
from rich.console import Console

from ...api.commands.exits import errors_as_sentences, until_terminated
from ...api.commands.figures import check_file, check_target, shows_table, write_figures
from ...api.commands.options import FLAT
from ...nurseries.tasks.service import single_error
from ..observers import NotInTime
from ..server_process import ServerEnded
from .campaign import Campaign, log_violations
from .clients import Lost
from .fault_plan import Fault, FaultKind, digest, make_plan
from .history import Violation
from .learning import learn_apart
from .load import PROBES
from .network.host_campaign import run_hosts
from .network.namespaces import NoNamespaces
from .options import ChaosOptions
from .report.report import Report
from .served_run import JOURNAL, open_served_run
from .target.target_campaign import run_target

EXIT_GREEN, EXIT_RED = 0, 1
CHAOS = ChaosOptions()
# Of the table, where it goes to no terminal.
COLUMNS = 170


class Plan(Protocol):
    """Faults of a campaign, in their order."""

    @property
    def faults(self) -> Sequence[attrs.AttrsInstance]: ...

    def counts(self) -> Mapping[str, int]:
        """{row of the report: how many}."""

    async def run(self, campaign: Campaign) -> None:
        """Make them all, or as many as there is time for. Raises `NotInTime`."""


@attrs.frozen
class Deck:
    """Faults of all kinds, each once before any comes again."""

    faults: Sequence[Fault]

    def counts(self) -> Mapping[str, int]:
        """By kind, in the order in which kinds are listed."""
        counts = Counter(fault.kind for fault in self.faults)
        return {str(kind): counts[kind] for kind in FaultKind if counts[kind]}

    async def run(self, campaign: Campaign) -> None:
        """Segment by segment. Raises `NotInTime`."""
        await campaign.run_faults(self.faults)


async def run_campaign(options: ChaosOptions, plan: Plan | None = None) -> Report:
    """Run a plan, the deck of these options by default, to its end.

    Raises `ServerEnded` or `NotInTime` if the server does not even come up. Cancellation: it is
    stopped, nothing of it is left.
    """
    plan = plan or Deck(plan_of(options))
    replay = options.words_of_replay()
    report = Report(options.seed, digest(plan.faults), replay, plan.counts())
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
                await plan.run(campaign)
                await campaign.kill_root()
            except* NotInTime as group:  # what did not come back ends the campaign, in red
                report.violations.append(Violation("I8", str(single_error(group))))
            report.violations += log_violations(run.log())
    report.seconds = trio.current_time() - began_s
    return report


def plan_of(options: ChaosOptions) -> list[Fault]:
    """The deck's faults."""
    return make_plan(
        options.seed,
        options.count,
        engines=options.engines,
        frontends=options.frontends,
        scripts=len(PROBES),
        workers=options.workers,
        kinds=options.kinds(),
    )


def chaos(*, options: Annotated[ChaosOptions, FLAT] = CHAOS) -> None:
    """`triolet chaos`: exits with the code of `run_chaos`."""
    with errors_as_sentences(Lost, NoNamespaces, NotInTime, ServerEnded):
        raise SystemExit(run_chaos(options))


def run_chaos(options: ChaosOptions) -> int:
    """Run the campaign and print what it showed; the exit code."""
    check_target(options.json)
    if options.picture:
        check_file("picture", options.picture)
    run = run_hosts if options.hosts else run_target if options.target else run_campaign
    report = trio.run(until_terminated, partial(run, options))
    if shows_table(options.json):
        show(report)
    if options.picture:
        pathlib.Path(options.picture).write_text(report.picture())
    write_figures(options.json, {"command": "chaos", **report.as_json()})
    return exit_code(report)


def exit_code(report: Report) -> int:
    """Of the command."""
    return EXIT_GREEN if report.is_green() else EXIT_RED


def show(report: Report) -> None:
    """The table, and in sentences what it does not hold."""
    console = Console(width=None if sys.stdout.isatty() else COLUMNS)
    console.print(report.table())
    for sentence in report.sentences():
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)
