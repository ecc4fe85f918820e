"""Exit codes of the commands, and the one place where errors become a line and a code.

A user's mistake or a full port is a sentence, never a traceback; a bug of ours keeps its traceback.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ...engine.errors import EngineError
from ...nurseries.error_groups import single_error
from ...nurseries.supervisor import RestartLimitExceeded
from ...runtime.control_server import ControlCallFailed
from ...runtime.errors import NoEngineLeft, RunNotFound
from ...runtime.platform import UnsupportedPlatform
from ...runtime.root import PortInUse

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
# An engine was given up for good: systemd's Restart=on-failure must see it.
EXIT_ENGINE_LOST = 3

_SENTENCES = (
    EngineError,
    ControlCallFailed,
    NoEngineLeft,
    PortInUse,
    RestartLimitExceeded,
    RunNotFound,
    UnsupportedPlatform,
    PermissionError,
)


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Print an expected error as one sentence and exit with its code."""
    try:
        yield
    except BaseException as error:
        bare = single_error(error)
        if isinstance(bare, KeyboardInterrupt):
            sys.exit(130)
        if not isinstance(bare, _SENTENCES):
            raise
        print(f"triolet: {bare}", file=sys.stderr)
        sys.exit(EXIT_ENGINE_LOST if isinstance(bare, NoEngineLeft) else EXIT_FAILED)
