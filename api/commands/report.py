"""Progress report of a run on stderr: bars on a terminal, plain lines or log lines otherwise.

stdout stays the command's own.
"""

import json
import logging
import re
import sys
from contextlib import AbstractContextManager, nullcontext

import attrs
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ...engine.control_messages import BootPhase
from ...nurseries.logs import HUMAN
from ...runtime.event_lines import LineReport, sentence
from ...runtime.events import (
    ChildFailed,
    ChildGone,
    ChildHung,
    ChildPhaseEnded,
    ChildProgress,
    ChildReady,
    ChildStarting,
    ChildStopped,
    EngineDiffers,
    FileDownloaded,
    HostLost,
    HostSaid,
    HostSilent,
    OnEvent,
    RequestRefused,
    RunEvent,
    Serving,
)
from .exits import print_whole

logger = logging.getLogger(__name__)
# Borders between the words of a class's name.
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")


@attrs.frozen
class FirstSteps:
    """Instructions for people with a server that has come up."""

    model: str
    needs_key: bool = False
    # The admin key of `--demo`; no log may have it.
    demo_key: str = attrs.field(default="", repr=False)

    def page_with_key(self, url: str) -> str:
        """Address of the page with the key behind the `#`, which no browser sends."""
        return f"{url}/#key={self.demo_key}"

    def lines(self, url: str, *, is_terminal: bool = False) -> list[str]:
        """A page, a command, and code."""
        key = " -H 'authorization: Bearer KEY'" if self.needs_key else ""
        body = json.dumps({"model": self.model, "input": "Hello"})
        page = f"{url}/"
        if is_terminal and self.demo_key:
            page = f"{self.page_with_key(url)}  (chat, watch the processes, kill them)"
        return [
            f"  page  {page}",
            f"  curl  curl {url}/v1/responses{key} -H 'content-type: application/json' -d '{body}'",
            f'  SDK   OpenAI(base_url="{url}/v1", api_key="{"KEY" if self.needs_key else "none"}")',
        ]


@attrs.frozen
class ServerLog:
    """Events as lines of the log; behind the one that it serves the first steps, for people.

    The address with a key is printed to stdout, as no log may have it.
    """

    steps: FirstSteps
    is_for_people: bool = True

    def __call__(self, event: RunEvent) -> None:
        """Log it."""
        log_event(event)
        if not isinstance(event, Serving):
            return
        if self.steps.demo_key:
            print_whole(f"page that may kill: {self.steps.page_with_key(event.url)}")
        for line in self.steps.lines(event.url) if self.is_for_people else ():
            logger.info("%s", line)


def log_event(event: RunEvent) -> None:
    """Log an event as a line, and as data for logs in JSON."""
    if line := sentence(event):
        # A line's own epoch is that of the process that logs.
        facts = {
            "child_epoch" if name == "epoch" else name: value
            for name, value in attrs.asdict(event).items()
        }
        facts["event"] = _WORDS.sub("_", type(event).__name__).lower()
        logger.log(_level(event), "%s", line, extra={"facts": facts})


def _level(event: RunEvent) -> int:
    match event:
        case ChildGone() | ChildHung() | EngineDiffers() | RequestRefused():
            return logging.WARNING
        case HostLost(is_in_order=False) | HostSilent() | HostSaid(is_warning=True):
            return logging.WARNING
        case ChildFailed():
            return logging.ERROR
        case _:
            return logging.INFO


class BarReport:
    """A bar for each starting process, lines for the rest; for terminals."""

    def __init__(self, console: Console, steps: FirstSteps | None = None) -> None:
        self._console, self._steps = console, steps
        self._progress = Progress(
            TextColumn("{task.description:24}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            auto_refresh=False,  # rich would refresh from a thread of its own
            # Else it takes what others write piece by piece for lines: answers in `triolet run`.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._bars: dict[str, TaskID] = {}

    def __call__(self, event: RunEvent) -> None:
        """Draw at once."""
        match event:
            case ChildStarting(child=child):
                self._draw(child, BootPhase.START, 0.0)
            case ChildProgress(child=child, phase=phase, fraction=fraction):
                self._draw(child, phase, fraction)
            case ChildPhaseEnded():
                pass  # seen in the bar, which goes on with the next
            case (
                ChildReady(child=child)
                | ChildGone(child=child)
                | ChildStopped(child=child)
                | FileDownloaded(model=child)
            ):
                if child in self._bars:
                    self._progress.remove_task(self._bars.pop(child))
                self._print(event)
            case _:
                self._print(event)
        self._progress.refresh()

    def _draw(self, child: str, phase: str, fraction: float) -> None:
        if child not in self._bars:
            self._bars[child] = self._progress.add_task(child, total=1.0)
        self._progress.update(
            self._bars[child], description=f"{child}: {phase}", completed=fraction
        )

    def _print(self, event: RunEvent) -> None:
        lines = [line] if (line := sentence(event)) else []
        if isinstance(event, Serving) and self._steps is not None:
            lines += self._steps.lines(event.url, is_terminal=True)
        for line in lines:  # whole, so that they can be copied
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> "BarReport":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def make_report() -> AbstractContextManager[OnEvent]:
    """Bars if stderr is a terminal."""
    if sys.stderr.isatty():
        return BarReport(Console(stderr=True))
    return nullcontext(LineReport(sys.stderr))


def is_watched(log_format: str) -> bool:
    """Whether somebody at a terminal reads what a server reports, and no program does."""
    return log_format == HUMAN and sys.stderr.isatty()


def make_server_report(log_format: str, steps: FirstSteps) -> AbstractContextManager[OnEvent]:
    """Bars for who watches; else lines of the log."""
    if is_watched(log_format):
        return BarReport(Console(stderr=True), steps)
    return nullcontext(ServerLog(steps, is_for_people=log_format == HUMAN))
