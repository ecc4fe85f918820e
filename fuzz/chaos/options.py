"""Options of the chaos command, and of the server that it starts.

Plain data with defaults; the command line's parser reads the annotations.
"""

import math
from collections.abc import Sequence
from typing import Annotated

import attrs
from cyclopts import Parameter

from ...engine.errors import InvalidParameter
from ...engine.kernels.library import machine_isas
from .fault_plan import DECK, FaultKind

# What Python runs: the server of a user, and one that differs where a campaign needs it.
PROGRAM = ("-m", "triolet")
CHAOS_SERVER = f"{__package__}.chaos_server"
# Not the best of any machine that has two.
OTHER_ISA = "plain"
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
    unlike: Annotated[
        bool,
        Parameter(help="Its engines have different instruction sets, and no stream in common."),
    ] = False
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
        if self.unlike and (self.executor != "native" or self.engines < 2):
            raise InvalidParameter("unlike", "needs --executor native, and two engines")
        if self.unlike and len(machine_isas()) < 2:
            raise InvalidParameter("unlike", "this processor runs one instruction set alone")
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
            *("--null-step", str(self.step), "--workers", str(self.workers)),
            *self._words_of_each(),
        ]

    def words_of_reference(self, isa: str) -> list[str]:
        """Of a server whose only engine has this instruction set."""
        return ["--engines", "1", "--frontends", "1", "--isa", isa, *self._words_of_each()]

    def _words_of_each(self) -> list[str]:
        return [
            *("--executor", self.executor, "--threads", "1"),
            *(("--kv-blocks", str(self.kv_blocks)) if self.kv_blocks else ()),
            *(word for key in self.keys() for word in ("--api-key", key)),
            *_RESTARTS,
        ]

    def program(self) -> Sequence[str]:
        """What Python runs: `triolet` itself wherever that will do."""
        if self.unlike or FaultKind.POISON in self.kinds():
            return ("-m", CHAOS_SERVER, ",".join(self.isas()))
        return PROGRAM

    def isas(self) -> tuple[str, ...]:
        """Instruction sets of its engines by rank, the last one goes on; "" is the best."""
        return ("", OTHER_ISA) if self.unlike else ("",)

    def keys(self) -> list[str]:
        """Of its clients: during each fault others come, and at last others again."""
        return [f"chaos-{number}" for number in range(self.faults + 1)]

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
            *(("--unlike",) if self.unlike else ()),
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
