"""Platform check: what of Linux a process tree needs, and an error that names what is missing.

`import triolet` works everywhere; starting a process tree needs Linux with pidfd, memfd, eventfd
and abstract sockets.
"""

import os
import sys

import attrs

_NEEDED = ("pidfd_open", "memfd_create", "eventfd")


@attrs.frozen
class UnsupportedPlatform(Exception):
    """This system lacks `missing`."""

    missing: tuple[str, ...]

    def __str__(self) -> str:
        return f"triolet needs Linux 5.10 or later; missing here: {', '.join(self.missing)}"


def check_platform(platform: str = sys.platform, provider: object = os) -> None:
    """Raises `UnsupportedPlatform` unless every building block is there."""
    missing = [] if platform == "linux" else [f"Linux (this is {platform})"]
    missing += [f"os.{name}" for name in _NEEDED if not hasattr(provider, name)]
    if missing:
        raise UnsupportedPlatform(tuple(missing))
