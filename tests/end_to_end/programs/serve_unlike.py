"""`triolet serve` with the arguments given, where all engines but the first compute with `plain`.

As on machines of different kinds: their tokens are others, and so is their numerics id.
"""

from typing import Any

import attrs

from triolet.__main__ import main
from triolet.engine.config import EngineSettings
from triolet.runtime.fleet import root
from triolet.runtime.fleet.engine_fleet import EngineFleet


class UnlikeFleet(EngineFleet):
    """Gives each engine its own instruction set."""

    def settings_of(self, rank: int) -> EngineSettings:
        """The settings of the run, with the instruction set of this rank."""
        return attrs.evolve(self.settings.engine, isa="plain" if rank else "")


roots: Any = root
roots.EngineFleet = UnlikeFleet
main()
