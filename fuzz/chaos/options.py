"""Options of the chaos command, and of the server that it starts.

Plain data with defaults; the command line's parser reads the annotations.
"""

import enum
import math
import os
from collections.abc import Sequence
from typing import Annotated

import attrs
from cyclopts import Group, Parameter

from ...engine.errors import InvalidParameter
from ...engine.kernels.library import machine_isas
from .fault_plan import DECK, DISK, Family, FaultKind

# What Python runs: the server of a user, and one that differs where a campaign needs it.
PROGRAM = ("-m", "triolet")
CHAOS_SERVER = f"{__package__}.chaos_server"
# Not the best of any machine that has two.
OTHER_ISA = "plain"
# Every place may die for ever: that a limit holds is tested elsewhere.
_RESTARTS = ("--restart-limit", "1000000")


class Profile(enum.StrEnum):
    """A campaign of a size."""

    QUICK = "quick"  # each kind of fault once, as CI does
    NIGHTLY = "nightly"  # all kinds, for an hour


# {profile: how many faults, in how many minutes at most}
SIZES = {
    None: (300, math.inf),
    Profile.QUICK: (len(DECK), math.inf),
    Profile.NIGHTLY: (100 * len(DECK), 60.0),
}
# Each takes as long as such a server takes to start.
TARGET_KILLS = 20
# A head, and two hosts of which one may be lost.
HOSTS_MIN = 3
# What `--help` shows together.
FAULTS, SERVER, TARGET, REPORT = (
    Group(title, sort_key=place)
    for place, title in enumerate(("Faults", "Server", "Another server", "Report"))
)


@attrs.frozen(kw_only=True)
class ChaosOptions:
    """One campaign. Raises `InvalidParameter`."""

    seed: Annotated[int, Parameter(group=FAULTS, help="Seed of the faults and their moments.")] = 1
    profile: Annotated[
        Profile | None,
        Parameter(
            group=FAULTS,
            help="quick: each kind once; nightly: all kinds for an hour.",
        ),
    ] = None
    faults: Annotated[
        int | None,
        Parameter(
            group=FAULTS, help="Number of faults before the root is killed: 300, or the profile's."
        ),
    ] = None
    minutes: Annotated[
        float | None,
        Parameter(group=FAULTS, help="Maximum minutes of faults; then the root is killed."),
    ] = None
    engines: Annotated[int, Parameter(group=SERVER, help="Number of engines.")] = 2
    frontends: Annotated[int, Parameter(group=SERVER, help="Number of frontends.")] = 2
    hosts: Annotated[
        int,
        Parameter(
            group=SERVER,
            help="Number of hosts, the head's included, in network namespaces whose links fail; 0"
            " is one machine. Needs root, or `unshare --user --map-root-user`.",
        ),
    ] = 0
    host_build: Annotated[
        str,
        Parameter(
            group=SERVER,
            help="Python of another build, which hosts have at first: before any other fault each"
            " drains and is replaced.",
        ),
    ] = ""
    head_build: Annotated[
        str, Parameter(group=SERVER, help="Python of another build, which the head has.")
    ] = ""
    executor: Annotated[
        str, Parameter(group=SERVER, help="Executor, as of serve: null, native or torch.")
    ] = "null"
    step: Annotated[
        float, Parameter(group=SERVER, help="Seconds of a step of the null executor.")
    ] = 0.01
    workers: Annotated[
        int, Parameter(group=SERVER, help="Workers of each engine; more than 1 need null.")
    ] = 1
    kv_blocks: Annotated[
        int,
        Parameter(
            group=SERVER, help="KV blocks of each engine; with few, replays meet a full cache."
        ),
    ] = 0
    unlike: Annotated[
        bool,
        Parameter(
            group=SERVER,
            help="Give the engines different instruction sets, so that they cannot share a stream.",
        ),
    ] = False
    only: Annotated[
        tuple[FaultKind, ...],
        Parameter(group=FAULTS, help="Make faults of these kinds only."),
    ] = ()
    disk: Annotated[
        bool,
        Parameter(
            group=FAULTS,
            help="Keep journals on a disk that is full at times, and tear them.",
        ),
    ] = False
    patience: Annotated[
        float,
        Parameter(group=FAULTS, help="Multiply all time limits by this factor, for busy machines."),
    ] = 1.0
    target: Annotated[
        str,
        Parameter(
            group=TARGET,
            help="Command line of another OpenAI-compatible server, to kill its processes instead"
            " and count what its clients lose.",
        ),
    ] = ""
    target_url: Annotated[
        str, Parameter(group=TARGET, help="Base URL of --target on this machine.")
    ] = "http://127.0.0.1:8000/v1"
    target_model: Annotated[
        str, Parameter(group=TARGET, help="Model to request; empty: the first that it lists.")
    ] = ""
    json: Annotated[
        str,
        Parameter(
            group=REPORT,
            name=("--json", "--report"),
            help="Write the report as JSON to this file, or to stdout: -",
            allow_leading_hyphen=True,
        ),
    ] = ""
    picture: Annotated[
        str,
        Parameter(
            group=REPORT,
            help="Write a picture of streams and faults over time to this file, as SVG.",
        ),
    ] = ""

    def __attrs_post_init__(self) -> None:
        values = {**attrs.asdict(self), "faults": self.count}
        for name in ("faults", "engines", "frontends", "workers"):
            if values[name] < 1:
                raise InvalidParameter(name, f"must be at least 1, not {values[name]}")
        if not self.most_s() > 0:
            raise InvalidParameter("minutes", f"must be above 0, not {self.minutes}")
        if self.kv_blocks < 0:
            raise InvalidParameter("kv_blocks", f"must be at least 0, not {self.kv_blocks}")
        if self.unlike and (self.executor != "native" or self.engines < 2):
            raise InvalidParameter("unlike", "needs --executor native, and two engines")
        if self.unlike and len(machine_isas()) < 2:
            raise InvalidParameter("unlike", "this processor runs one instruction set alone")
        if self.target and self.profile:
            raise InvalidParameter("target", "is a campaign of its own: it has no --profile")
        if self.hosts and (self.hosts < HOSTS_MIN or self.target or self.only):
            raise InvalidParameter(
                "hosts", f"must be 0, or at least {HOSTS_MIN} without --target and --only"
            )
        builds = {"host_build": self.host_build, "head_build": self.head_build}
        for name, python in builds.items():
            if python and not (self.hosts and os.access(python, os.X_OK)):
                raise InvalidParameter(name, f"needs --hosts and a program to run, not {python!r}")
        if FaultKind.KILL_ROOT in self.only:
            raise InvalidParameter("only", "the root is killed last in any case")
        if not 1 <= self.patience < math.inf:
            raise InvalidParameter(
                "patience", f"must be finite and at least 1, not {self.patience:g}"
            )
        if not 0 <= self.step < math.inf:
            raise InvalidParameter("step", f"must be finite and at least 0, not {self.step:g}")

    @property
    def count(self) -> int:
        """How many faults."""
        if self.target and self.faults is None:
            return TARGET_KILLS
        return SIZES[self.profile][0] if self.faults is None else self.faults

    def most_s(self) -> float:
        """For so long faults are made."""
        return 60 * (SIZES[self.profile][1] if self.minutes is None else self.minutes)

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
        poisons = (Family.FORM, Family.POISON)
        if self.unlike or any(kind.family in poisons for kind in self.kinds()):
            return ("-m", CHAOS_SERVER, ",".join(self.isas()))
        return PROGRAM

    def isas(self) -> tuple[str, ...]:
        """Instruction sets of its engines by rank, the last one goes on; "" is the best."""
        return ("", OTHER_ISA) if self.unlike else ("",)

    def keys(self) -> list[str]:
        """Keys of its clients: during each fault others come, and at last others again."""
        return [f"chaos-{number}" for number in range(self.count + 1)]

    def kinds(self) -> tuple[FaultKind, ...]:
        """What its faults are."""
        return self.only or (*DECK, *sorted(DISK if self.disk else ()))

    @property
    def has_disk(self) -> bool:
        """Whether journals are on disk."""
        return self.disk or not DISK.isdisjoint(self.only)

    def spares(self) -> int:
        """How many spares such a server keeps by itself: for an engine and a frontend."""
        return 2

    def words_of_replay(self) -> list[str]:
        """The command that makes the same faults again."""
        if self.target:
            which = ("--target", self.target, "--target-url", self.target_url)
            counts = ("--seed", str(self.seed), "--faults", str(self.count))
            return ["triolet", "chaos", *which, *counts]
        return [
            *("triolet", "chaos", "--seed", str(self.seed), "--faults", str(self.count)),
            *(("--profile", str(self.profile)) if self.profile else ()),
            *(("--hosts", str(self.hosts)) if self.hosts else ()),
            *(("--host-build", self.host_build) if self.host_build else ()),
            *(("--head-build", self.head_build) if self.head_build else ()),
            *("--engines", str(self.engines), "--frontends", str(self.frontends)),
            *("--executor", self.executor, "--step", str(self.step)),
            *("--workers", str(self.workers)),
            *(("--kv-blocks", str(self.kv_blocks)) if self.kv_blocks else ()),
            *(("--unlike",) if self.unlike else ()),
            *(("--disk",) if self.disk else ()),
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
            *(f"forms {rank}" for rank in range(self.frontends)),
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
