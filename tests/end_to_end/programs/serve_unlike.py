"""`triolet serve` with the arguments given, where all engines but the first compute with `plain`.

As on machines of different kinds: their tokens are others, and so is their numerics id.
"""

from typing import Any

import attrs

from triolet.__main__ import main
from triolet.runtime.processes import root
from triolet.runtime.processes.engine_fleet import EngineFleet


class UnlikeFleet(EngineFleet):
    """Gives each engine its own instruction set."""

    def handle_starting(self, rank: int, epoch: int) -> bytes:
        """As ever, with other settings."""
        isa = "plain" if rank else ""
        engine = attrs.evolve(self.settings.engine, isa=isa)
        self.settings = attrs.evolve(self.settings, engine=engine)
        return super().handle_starting(rank, epoch)


roots: Any = root
roots.EngineFleet = UnlikeFleet
main()
