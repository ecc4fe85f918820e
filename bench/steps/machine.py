"""What can be said of the machine beside figures: processor, cores, and how much noise there is.

Neighbours on a machine change every figure, and nobody sees them afterwards; so each run of a
benchmark notes the load and how much CPU time a plain loop took. Must not know what is measured.
"""

import os
import platform
import time
from pathlib import Path

import attrs

from ... import __version__
from ...engine.host import cores

# About 20 ms; long enough that a tick of the clock does not matter.
_TURNS = 1_000_000
# More processes that want to run than this, apart from ours, make figures of no use.
QUIET_LOAD = 0.5


@attrs.frozen(kw_only=True)
class Machine:
    """One machine at one moment. `load` is how many processes wanted to run in the last minute."""

    processor: str
    cores: int
    load: float
    # CPU time of one turn of an empty loop, nanoseconds.
    turn_ns: float
    python: str
    triolet: str

    @property
    def is_quiet(self) -> bool:
        """Whether the figures can be believed."""
        return self.load < QUIET_LOAD

    def describe(self) -> str:
        """One line below a table."""
        noise = "quiet" if self.is_quiet else f"NOT quiet: load {self.load:.1f} before the run"
        return (
            f"{self.processor}, {self.cores} cores, {noise};"
            f" an empty loop took {self.turn_ns:.0f} ns a turn"
        )


def look_at_machine() -> Machine:
    """Look at it now; takes about 20 ms."""
    began_s = time.process_time()
    for _ in range(_TURNS):
        pass
    return Machine(
        processor=_processor(),
        cores=cores(),
        load=os.getloadavg()[0],
        turn_ns=(time.process_time() - began_s) / _TURNS * 1e9,
        python=platform.python_version(),
        triolet=__version__,
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
