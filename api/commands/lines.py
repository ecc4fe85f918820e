"""Lines that a person types: edited, with history, on a terminal; as they come from a pipe.

The library that edits has a loop of its own, and blocks: it runs in a thread. Cancelled, it is made
to leave, since a terminal must not be left in its mode.
"""

import os
import pathlib
import sys
from collections.abc import Callable
from typing import Protocol

import attrs
import trio
from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.output import Output

PROMPT = "> "
# Time for an editor that was made to leave to give the terminal back; it takes milliseconds.
LEAVE_S = 2.0


class Lines(Protocol):
    """Source of lines."""

    async def read(self) -> str | None:
        """The next line, after a prompt; None at the end. Raises `KeyboardInterrupt` where Ctrl-C
        is a key and no signal."""


@attrs.define(eq=False)
class PipedLines:
    """Standard input as it is. Cancelled, the thread stays behind in `readline`."""

    async def read(self) -> str | None:
        """Read the next line; Ctrl-C is a signal here."""
        sys.stdout.write(PROMPT)
        sys.stdout.flush()
        line = await trio.to_thread.run_sync(
            sys.stdin.readline, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
        )
        return line.removesuffix("\n") if line else None


@attrs.define(eq=False)
class EditedLines:
    """Lines with editing, and with the history of all conversations."""

    session: PromptSession[str]

    @classmethod
    def of(cls, source: Input | None = None, screen: Output | None = None) -> "EditedLines":
        """On this terminal; tests have others."""
        return cls(PromptSession(history=_history(), input=source, output=screen))

    async def read(self) -> str | None:
        """Read the next line. Cancellation gives the terminal back, within `LEAVE_S`."""
        left, token = trio.Event(), trio.lowlevel.current_trio_token()

        def ask() -> str | None:
            try:
                return self.session.prompt(PROMPT, handle_sigint=False)
            except EOFError:
                return None
            finally:
                token.run_sync_soon(left.set)

        try:
            return await trio.to_thread.run_sync(
                ask, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
            )
        except trio.Cancelled:
            with trio.move_on_after(LEAVE_S, shield=True):
                self._leave()
                await left.wait()
            raise

    def _leave(self) -> None:
        app = self.session.app
        if app.loop is not None and app.is_running:
            end: Callable[[], None] = lambda: app.exit(exception=EOFError)  # noqa: E731
            app.loop.call_soon_threadsafe(end)


def open_lines() -> Lines:
    """Edited if both ends are a terminal."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        return EditedLines.of()
    return PipedLines()


def _history() -> History:
    """A file of this user's state; without a place for one, this conversation's alone."""
    base = os.environ.get("XDG_STATE_HOME") or pathlib.Path.home() / ".local" / "state"
    folder = pathlib.Path(base) / "triolet"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(folder / "history"))
