"""Shows a run's events to the person who started it: bars on a terminal, plain lines otherwise.

Writes to stderr alone, so that stdout stays the command's own. Must not know processes or where
events come from.
"""

import sys
import time
from typing import TextIO, assert_never

import attrs
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ...runtime.events import (
    ChildFailed,
    ChildGone,
    ChildProgress,
    ChildReady,
    Draining,
    RunEvent,
    Serving,
)


def sentence(event: RunEvent) -> str:
    """One event as a line for people; "" for what only a bar shows."""
    match event:
        case ChildProgress(child=child, phase=phase, fraction=fraction):
            return f"{child}: {phase}" if fraction == 0 else ""
        case ChildReady(child=child, epoch=epoch, boot_s=boot_s):
            return f"{child}: ready after {boot_s:.1f} s (epoch {epoch})"
        case ChildGone(child=child, cause=cause):
            return f"{child}: {cause}"
        case ChildFailed(child=child, cause=cause):
            return f"{child}: given up: {cause}"
        case Serving(url=url, boot_s=boot_s):
            return f"serving on {url} after {boot_s:.1f} s"
        case Draining(open_streams=open_streams, grace_s=grace_s):
            return (
                f"draining: {open_streams} open streams, at most {grace_s:g} s;"
                " press Ctrl-C again to abort them"
            )
        case _:
            assert_never(event)


@attrs.define(eq=False)
class LineReport:
    """One line an event, with the time; for logs and pipes."""

    stream: TextIO

    def __call__(self, event: RunEvent) -> None:
        """Write the line at once."""
        line = sentence(event)
        if line:
            print(f"{time.strftime('%H:%M:%S')} {line}", file=self.stream, flush=True)

    def __enter__(self) -> "LineReport":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class BarReport:
    """A bar for each starting process, lines for the rest; for terminals."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:24}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            auto_refresh=False,  # rich would refresh from a thread of its own
        )
        self._bars: dict[str, TaskID] = {}

    def __call__(self, event: RunEvent) -> None:
        """Draw at once."""
        match event:
            case ChildProgress(child=child, phase=phase, fraction=fraction):
                if child not in self._bars:
                    self._bars[child] = self._progress.add_task(child, total=1.0)
                self._progress.update(
                    self._bars[child], description=f"{child}: {phase}", completed=fraction
                )
            case ChildReady(child=child) | ChildGone(child=child):
                if child in self._bars:
                    self._progress.remove_task(self._bars.pop(child))
                self._console.print(sentence(event), highlight=False)
            case _:
                self._console.print(sentence(event), highlight=False)
        self._progress.refresh()

    def __enter__(self) -> "BarReport":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def make_report() -> LineReport | BarReport:
    """Bars if stderr is a terminal."""
    if sys.stderr.isatty():
        return BarReport(Console(stderr=True))
    return LineReport(sys.stderr)
