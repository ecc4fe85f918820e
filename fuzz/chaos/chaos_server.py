"""`triolet serve` or `engine`, as its arguments say, but for processes that know poisons.

    python -m triolet.fuzz.chaos.chaos_server ISAS serve …

Workers, form processes and frontends do (`poisoned_worker`, `poisoned_forms`,
`poisoned_frontend`). ISAS are
instruction sets by rank, with commas between them, of which the last one goes on; an empty one is
the best. With two, as on machines of different kinds, tokens and numerics ids differ.
"""

import runpy
import sys
from typing import Any

import attrs

from ...engine.config import EngineSettings
from ...runtime.fleet import root
from ...runtime.fleet.engine_fleet import EngineFleet
from ...runtime.fleet.form_fleet import FormFleet
from ...runtime.fleet.frontend_fleet import FrontendFleet
from ...runtime.hosts import host_life
from .poisoned_engine import WORKER_MODULE


class ChaosFleet(EngineFleet):
    """Engines of these instruction sets, whose workers know poisons."""

    isas: tuple[str, ...] = ("",)

    def __attrs_post_init__(self) -> None:
        self.module = f"{__package__}.poisoned_engine"
        super().__attrs_post_init__()

    def _ahead(self) -> tuple[str, ...]:
        return (WORKER_MODULE,)

    def settings_of(self, rank: int) -> EngineSettings:
        """The settings of the run, with the instruction set of this rank."""
        isa = self.isas[min(rank, len(self.isas) - 1)]
        return attrs.evolve(self.settings.engine, isa=isa)


class ChaosFrontends(FrontendFleet):
    """Frontends that know poisons."""

    def __attrs_post_init__(self) -> None:
        self.module = f"{__package__}.poisoned_frontend"
        super().__attrs_post_init__()


class ChaosForms(FormFleet):
    """Form processes that know poisons."""

    def __attrs_post_init__(self) -> None:
        self.module = f"{__package__}.poisoned_forms"
        super().__attrs_post_init__()


if __name__ == "__main__":
    ChaosFleet.isas = tuple(sys.argv.pop(1).split(","))
    roots: Any = root
    roots.EngineFleet, roots.FrontendFleet = ChaosFleet, ChaosFrontends
    roots.FormFleet = ChaosForms
    hosts: Any = host_life
    hosts.EngineFleet = ChaosFleet
    runpy.run_module("triolet", run_name="__main__")
