"""Exit codes of the commands, and how they end: errors as sentences, signals as cancellation.

    0   it went well; a server was asked to end, and drained
    1   it failed: a busy port, a model folder that cannot be served, no running server, …
    2   the command line is wrong: an unknown word, a value out of range
    3   an engine or a frontend was given up, so the server went on with fewer than configured, or
        ended
    78  a head refused this host for what only people can mend: sysexits' EX_CONFIG
    130 Ctrl-C, where it is not a way to end in order
    141 the reader of the output left before its end (`triolet config show | head`)
    143 SIGTERM or SIGHUP, where it is not a way to end in order

A user's mistake or a full port is a sentence, never a traceback; a bug of ours keeps its traceback.
"""

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from ...engine.errors import BootRefused, EngineError, InvalidParameter
from ...nurseries.plain_text import for_terminal
from ...nurseries.tasks.background import start_background_task
from ...nurseries.tasks.service import single_error, single_errors_unwrapped
from ...runtime.control.client import ControlCallFailed
from ...runtime.errors import (
    ControlCallRefused,
    JoinRefusedByHead,
    NoEngineLeft,
    NoFrontendLeft,
    PortInUse,
    RunNotFound,
)
from ...runtime.fleet.platform import UnsupportedPlatform

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
# A place was given up: systemd's Restart=on-failure must see it.
EXIT_ENGINE_LOST = 3
# A unit names this code in RestartPreventExitStatus.
EXIT_REFUSED = 78
# A shell's code for a program that SIGINT ended.
EXIT_INTERRUPTED = 130
# The same of SIGPIPE, which Python turns into an error.
EXIT_UNREAD = 141
EXIT_TERMINATED = 128 + signal.SIGTERM
# SIGHUP is a closed terminal's.
TERMINATIONS = (signal.SIGTERM, signal.SIGHUP)
T = TypeVar("T")

_SENTENCES = (
    EngineError,
    ControlCallFailed,
    ControlCallRefused,
    JoinRefusedByHead,
    NoEngineLeft,
    NoFrontendLeft,
    PortInUse,
    RunNotFound,
    UnsupportedPlatform,
    PermissionError,
)


@contextmanager
def errors_as_sentences(*more: type[Exception]) -> Iterator[None]:
    """Print an expected error as one sentence and exit with its code; `more` are the command's.

    Ctrl-C, which so far ended the program at once, is an error for the length of the block.
    """
    ends_at_once = signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    expected: tuple[type[BaseException], ...] = (*_SENTENCES, *more)
    caught: tuple[type[BaseException], ...] = (*expected, BaseExceptionGroup, KeyboardInterrupt)
    try:
        if ends_at_once:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    except caught as error:
        bare = single_error(error)
        if isinstance(bare, KeyboardInterrupt):
            sys.exit(EXIT_INTERRUPTED)
        if not isinstance(bare, expected):
            raise
        print(f"triolet: {sentence(bare)}", file=sys.stderr)
        sys.exit(_code(bare))
    finally:
        if ends_at_once:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


async def until_terminated(main: Callable[[], Awaitable[T]]) -> T:
    """Run `main`, return its value. A signal cancels it: its server must not outlive the command.

    Nor may a second one, as `timeout` sends it, cut that short. Raises what `main` raises, or
    `SystemExit` when a signal came.
    """
    stop = trio.CancelScope()
    with single_errors_unwrapped():
        async with trio.open_nursery() as nursery:
            await start_background_task(nursery, _cancel_when_terminated, stop, name="signals")
            with stop:
                value = await main()
            nursery.cancel_scope.cancel("the command is through")
    if stop.cancelled_caught:
        raise SystemExit(EXIT_TERMINATED)
    return value


async def _cancel_when_terminated(
    scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Task, outside of the scope that it cancels: no signal is lost."""
    with trio.open_signal_receiver(*TERMINATIONS) as signals:
        task_status.started()
        async for number in signals:
            scope.cancel(signal.Signals(number).name)


def print_whole(text: str) -> None:
    """Print the output of a command; a reader who leaves before its end, ends the command."""
    try:
        print(for_terminal(text) if sys.stdout.isatty() else text, flush=True)
    except BrokenPipeError:
        # The buffered rest has nowhere to go either, when Python flushes it at its end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        sys.exit(EXIT_UNREAD)


def sentence(error: BaseException) -> str:
    """The error's own, but that an option is called as it is on the command line."""
    if isinstance(error, InvalidParameter | BootRefused) and error.parameter:
        name = error.parameter
        # Nested settings are options under their own names.
        option = (name if "." in name else name.removesuffix("_s")).replace("_", "-")
        return f"--{option} {error.reason}"
    return str(error)


def _code(error: BaseException) -> int:
    match error:
        case InvalidParameter():
            return EXIT_USAGE
        case NoEngineLeft() | NoFrontendLeft():
            return EXIT_ENGINE_LOST
        case JoinRefusedByHead():
            return EXIT_REFUSED
        case _:
            return EXIT_FAILED
