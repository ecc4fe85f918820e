"""Options of the chaos command, and of the server that it starts.

Plain data with defaults; the command line's parser reads the annotations.
"""

import math
from typing import Annotated

import attrs
from cyclopts import Parameter

from ...engine.errors import InvalidParameter
from .fault_plan import DECK, FaultKind

# Every place may die for ever: that a limit holds is tested elsewhere.
_RESTARTS = ("--restart-limit", "1000000")


@attrs.frozen(kw_only=True)
class ChaosOptions:
    """One campaign. Raises `InvalidParameter`."""

    seed: Annotated[int, Parameter(help="What decides every fault and its moment.")] = 1
    faults: Annotated[int, Parameter(help="How many, before the root's death.")] = 300
    engines: Annotated[int, Parameter(help="Engines; two show that one may die.")] = 2
    frontends: Annotated[int, Parameter(help="Frontends; two show that one may die.")] = 2
    executor: Annotated[
        str, Parameter(help="What computes, as of serve: null, native or torch.")
    ] = "null"
    step: Annotated[float, Parameter(help="Seconds of a step of the null executor.")] = 0.01
    workers: Annotated[int, Parameter(help="Workers of each engine; more than 1 need null.")] = 1
    kv_blocks: Annotated[
        int, Parameter(help="Of each engine, as of serve; with few, replays meet a full cache.")
    ] = 0
    only: Annotated[
        tuple[FaultKind, ...], Parameter(help="Make faults of these kinds alone, not of all.")
    ] = ()
    patience: Annotated[
        float,
        Parameter(help="So many times longer than promised all may take: for a busy machine."),
    ] = 1.0
    json: Annotated[
        str,
        Parameter(
            help="Write what it found as JSON to this file, or to stdout: -",
            allow_leading_hyphen=True,
        ),
    ] = ""

    def __attrs_post_init__(self) -> None:
        for name in ("faults", "engines", "frontends", "workers"):
            if attrs.asdict(self)[name] < 1:
                raise InvalidParameter(name, f"must be at least 1, not {attrs.asdict(self)[name]}")
        if self.kv_blocks < 0:
            raise InvalidParameter("kv_blocks", f"must be at least 0, not {self.kv_blocks}")
        if FaultKind.KILL_ROOT in self.only:
            raise InvalidParameter("only", "the root is killed last in any case")
        if not 1 <= self.patience < math.inf:
            raise InvalidParameter(
                "patience", f"must be finite and at least 1, not {self.patience:g}"
            )
        if not 0 <= self.step < math.inf:
            raise InvalidParameter("step", f"must be finite and at least 0, not {self.step:g}")

    def words_of_serve(self) -> list[str]:
        """Options of `triolet serve`. One thread computes: two would wait for each other."""
        return [
            *("--engines", str(self.engines), "--frontends", str(self.frontends)),
            *("--executor", self.executor, "--null-step", str(self.step), "--threads", "1"),
            *("--workers", str(self.workers)),
            *(("--kv-blocks", str(self.kv_blocks)) if self.kv_blocks else ()),
            *_RESTARTS,
        ]

    def kinds(self) -> tuple[FaultKind, ...]:
        """What its faults are."""
        return self.only or DECK

    def spares(self) -> int:
        """How many spares such a server keeps by itself: for an engine and a frontend."""
        return 2

    def words_of_replay(self) -> list[str]:
        """The command that makes the same faults again."""
        return [
            *("triolet", "chaos", "--seed", str(self.seed), "--faults", str(self.faults)),
            *("--engines", str(self.engines), "--frontends", str(self.frontends)),
            *("--executor", self.executor, "--step", str(self.step)),
            *("--workers", str(self.workers)),
            *(("--kv-blocks", str(self.kv_blocks)) if self.kv_blocks else ()),
            *(word for kind in self.only for word in ("--only", option_name(kind))),
        ]

    def step_s(self) -> float:
        """How long a step takes at least; 0 if that is not known."""
        return self.step if self.executor == "null" else 0.0

    def places(self) -> list[str]:
        """Every process of the whole tree."""
        return [
            "root",
            *(f"frontend {rank}" for rank in range(self.frontends)),
            *(f"engine {rank}" for rank in range(self.engines)),
            *(
                f"engine {rank}/worker {worker}"
                for rank in range(self.engines)
                for worker in range(self.workers)
            ),
        ]


def option_name(kind: FaultKind) -> str:
    """How the command line calls a kind of fault."""
    return kind.name.lower().replace("_", "-")
