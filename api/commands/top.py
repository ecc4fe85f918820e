"""Live table of a running server's processes in the terminal, with keys that stop and kill them.

It reads what the page reads, over the run's control socket: the server says what changes, and
nothing is asked for over and over.
"""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import attrs
import trio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ...nurseries.tasks.background import start_background_task_soon
from ...runtime.control.calls import ControlCall, News, Signal, SignalOrder
from ...runtime.control.client import ask_run, watch_run
from ...runtime.control.run_folder import RunFolder
from ...runtime.errors import ControlCallRefused
from .overview import Overview, ProcessLine

# Time for every process to report, where the output is no terminal.
SETTLE_S = 1.2
COLUMNS = 120
MARKS_SHOWN = 5
NUMBERS = ("pid", "CPU %", "MB")
HELP = "↑ ↓ choose   o order   k kill   s stop   c continue   q quit"
SIGNALS = {"k": Signal.KILL, "s": Signal.STOP, "c": Signal.CONTINUE}
# Arrows as terminals send them behind an escape.
ARROWS = {"[A": -1, "[B": 1, "OA": -1, "OB": 1}
STYLES = {"stopped": "yellow", "silent": "yellow", "failed": "red"} | dict.fromkeys(
    ("ready", "up"), "green"
)


@attrs.define(eq=False)
class Screen:
    """Choice and questions of the person at the keys. Sans-IO: keys in, orders out."""

    overview: Overview = attrs.field(factory=Overview)
    place: str = "root"
    # A kill that is to be confirmed; then only `y` does it.
    asked: SignalOrder | None = None
    message: str = ""
    is_over: bool = False

    def handle_key(self, key: str) -> SignalOrder | None:
        """Handle a key, or what an arrow sends; an order if there is one to carry out."""
        asked, self.asked, self.message = self.asked, None, ""
        if asked is not None:
            return asked if key == "y" else None
        if key in ARROWS:
            self._move(ARROWS[key])
        elif key == "o":
            self.overview.choose_next_order()
        elif key in ("q", "\x04"):
            self.is_over = True
        elif key in SIGNALS:
            return self._order(SIGNALS[key])
        return None

    def _order(self, signal: Signal) -> SignalOrder | None:
        line = self.overview.line(self.place)
        if line is None or signal not in line.can:
            self.message = f"{self.place} takes no signals"
            return None
        order = SignalOrder(line.place, signal, line.pid)
        if signal is not Signal.KILL:
            return order
        self.asked = order
        self.message = f"kill {line.place} (pid {line.pid})? y: yes, any other key: no"
        return None

    def _move(self, step: int) -> None:
        places = [line.place for line in self.overview.lines()]
        if self.place not in places:
            self.place = "root"
        elif 0 <= places.index(self.place) + step < len(places):
            self.place = places[places.index(self.place) + step]

    def render(self) -> RenderableType:
        """The whole picture."""
        overview = self.overview
        table = Table(box=None, expand=True, pad_edge=False)
        for name in ("process", "pid", "state", "CPU %", "MB", "does"):
            justify: Literal["left", "right"] = "right" if name in NUMBERS else "left"
            table.add_column(name, justify=justify, no_wrap=True, ratio=name == "does" or None)
        for line in overview.lines():
            is_chosen = line.place == self.place
            style = ("reverse " if is_chosen else "") + ("strike" if line.is_struck else "")
            table.add_row(*_cells(line), style=style.strip())
        marks = [
            Text(f"{time.strftime('%H:%M:%S', time.localtime(at))} {text}", style="dim")
            for at, text in list(overview.marks)[-MARKS_SHOWN:]
        ]
        bottom = Text(self.message or HELP, style="bold" if self.message else "dim")
        return Group(Text(overview.head(), style="bold"), Text(), table, Text(), *marks, bottom)


def _cells(line: ProcessLine) -> Iterator[RenderableType]:
    yield Text("  " * line.depth + line.place)
    yield str(line.pid or "–")
    yield Text(line.state, style=STYLES.get(line.state, "magenta"))
    yield f"{100 * line.cpu:.0f}"
    yield f"{line.memory / 1e6:.0f}"
    yield Text(line.does)


async def show_top(folder: RunFolder) -> None:
    """Show it until `q`; where the output is no terminal, print it once.

    Raises `ControlCallFailed` when there is no server, or it has ended.
    """
    screen = Screen()
    console = Console()
    if not (console.is_terminal and sys.stdin.isatty()):
        console = Console(width=COLUMNS)
        with trio.move_on_after(SETTLE_S):
            await watch_run(folder, screen.overview.handle_news)
        console.print(screen.render())
        return
    with _raw_keys(), Live(console=console, screen=True, auto_refresh=False) as live:

        def draw() -> None:
            live.update(screen.render(), refresh=True)

        def handle(news: News) -> None:
            screen.overview.handle_news(news)
            draw()

        async with trio.open_nursery() as nursery:
            start_background_task_soon(
                nursery, _obey_keys, screen, folder, draw, nursery.cancel_scope, name="keys"
            )
            await watch_run(folder, handle)
            nursery.cancel_scope.cancel("the server has ended")


async def _obey_keys(
    screen: Screen, folder: RunFolder, draw: Callable[[], None], scope: trio.CancelScope
) -> None:
    """Background task `keys`."""
    while not screen.is_over:
        await trio.lowlevel.wait_readable(sys.stdin.fileno())
        order = screen.handle_key(_read_key(sys.stdin.fileno()))
        if order is not None:
            screen.message = await _carry_out(folder, order)
        draw()
    scope.cancel("the person has seen enough")


async def _carry_out(folder: RunFolder, order: SignalOrder) -> str:
    try:
        await ask_run(folder, ControlCall.SIGNAL, order=order)
    except ControlCallRefused as refused:
        return refused.reason
    return f"{order.place}: {order.signal}"


def _read_key(fd: int) -> str:
    """Read a key; of an arrow, which is an escape and two more, these two."""
    key = os.read(fd, 1)
    if key == b"\x1b" and select.select([fd], [], [], 0)[0]:
        key = os.read(fd, 2)
    return key.decode("ascii", "replace") or "q"  # nothing: the terminal is closed


@contextmanager
def _raw_keys() -> Iterator[None]:
    """Keys at once and unseen, for the block; Ctrl-C stays what it is."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
