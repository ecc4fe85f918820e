"""Fault plan of a campaign: a pure function of its seed.

Sans-IO: no clock, no processes. `campaign` carries the plan out. A fault's moment is a *progress
event* (so many tokens of its probe stream were seen), not a time, so that a seed hits the same
moments on a slow machine.

Kinds are dealt like cards: every kind comes once before any comes again, so that a short campaign
has all of them and a long one has equal shares.
"""

import enum
import hashlib
import random
from collections.abc import Sequence

import attrs

from ...engine.messages import BootPhase
from ...nurseries.processes.spares import APART

# Half of the moments are at the beginning, where requests change state most.
EARLY_TOKENS = (0, 1, 2, 3)
LATE_TOKENS_MAX = 40
# Stops of the root, or of all: up to what the shortest wait of the server (2 s) outlasts.
STOPS_S = (0.01, 0.1, 0.5, 1.0, 2.0)
# The others are watched: stopped for 0.5 s they are ended, which is a fault of its own (HANGS).
WATCHED_STOPS_S = (0.01, 0.05, 0.1, 0.2, 0.3)
# The successor of a frontend: while it is spawned, takes its streams over, serves.
ADOPTIONS_S = (0.0, 0.01, 0.03, 0.06, 0.1, 0.3)
# A slow reader stays so long, over several of the faults that follow.
SLOW_S = (1.0, 2.0, 4.0)
# A successor dies so long after it was seen: while it is spawned, forks its worker, boots, serves.
BOOTS_S = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6)
# A frozen tree stands still so many times longer than one process that is stopped: 5 s at most.
FROZEN_TIMES = 2.5
# What a request has for a seed that is a poison from its n-th token on, and n is added.
POISON_SEED = 0x706F69736F6E00
# What gets no more memory stays so long without: over several responses.
STARVED_S = (0.3, 0.6, 1.2)

# Where a server's spares are in the tree.
SPARE_ENGINE, SPARE_FRONTEND = "spare engine 0", "spare frontend 0"


class FaultKind(enum.StrEnum):
    """What is done; the value is what people read."""

    KILL_WORKER = "kill worker"
    KILL_ENGINE = "kill engine"
    KILL_FRONTEND = "kill frontend"
    KILL_SUCCESSOR = "kill successor"  # an engine, then the one that boots in its place
    KILL_STOPPED = "kill stopped"  # an engine that was stopped before
    KILL_ENGINES = "kill two engines"  # of two: all there are
    KILL_PAIR = "kill engine, frontend"
    KILL_ROOT = "kill root"
    STOP_WORKER = "stop worker"
    STOP_ENGINE = "stop engine"
    STOP_FRONTEND = "stop frontend"
    STOP_ROOT = "stop root"
    CANCEL_HTTP = "cancel by HTTP"
    CANCEL_SOCKET = "response.cancel"
    LEAVE = "leave"
    FIN = "disconnect FIN"
    RST = "disconnect RST"
    HALF_CLOSE = "half-close"
    NEVER_READS = "never reads"
    SLOW_READER = "1 byte/s"
    KILL_SPARE = "kill engine, spare"  # and the one that waits to succeed it, at once
    KILL_ALL = "kill engines, spare"  # the engine, the other one, and what waits to succeed them
    KILL_BOOT = "kill in boot"  # an engine, then its successor, in a phase of its boot
    HANG_BOOT = "stop in boot for ever"  # an engine is killed, and its successor so stopped
    CRASH_WORKER = "crash worker"  # by SIGSEGV, a fault of its own: its engine dies with it
    FREEZE_TREE = "freeze tree"  # all processes, root and spares too
    HANG_WORKER = "stop worker for ever"
    HANG_ENGINE = "stop engine for ever"
    HANG_FRONTEND = "stop frontend for ever"
    POISON = "poison"  # a request at whose step each worker aborts
    STARVE_WORKER = "starve worker"  # it gets no more memory than it has
    STARVE_ENGINE = "starve engine"
    STARVE_FRONTEND = "starve frontend"
    STARVE_BOOT = "starve in boot"  # an engine is killed, and its successor gets no memory
    KILL_ADOPTER = "kill frontend, successor"  # a frontend, then the one that adopts its streams
    KILL_THREE = "kill engine, worker, spare"
    KILL_FRONTENDS = "kill two frontends"  # of two: all there are
    KILL_FRONT = "kill frontend, engine, spare"  # and the one that waits to succeed the frontend
    DELAY = "network delay"
    LOSS = "network loss"
    SILENCE = "network silence"  # nothing passes, then the connection is reset
    CUT = "network cut"
    NO_FDS_FRONTEND = "no descriptors frontend"  # it can open none more
    NO_FDS_ENGINE = "no descriptors engine"
    LINK_CUT = "link cut"  # between a frontend and an engine
    LINK_STALL = "link stall"  # nothing passes on the links of one of them
    LINK_DELAY = "link delay"  # now and again
    CONTROL_CUT_ENGINE = "control cut engine"  # from the root: an engine without it ends
    CONTROL_CUT_FRONTEND = "control cut frontend"
    KILL_FORMS = "kill form process"  # while it checks a form, as all of these
    HANG_FORMS = "stop form process for ever"
    KILL_CHECK = "kill form check"  # the copy that checks one form
    HANG_CHECK = "stop form check for ever"
    FORM_BOMB = "form bomb"  # a form whose check fills memory, or burns the processor
    KILL_CHECKED = "kill frontend in check"  # that waits for a form
    FULL_DISK = "full disk"  # of a frontend's journal
    TORN_JOURNAL = "kill root, tear journals"


# Where journals are on disk.
DISK = frozenset({FaultKind.FULL_DISK, FaultKind.TORN_JOURNAL})
# The root dies for good once, as the last act.
DECK = tuple(kind for kind in FaultKind if kind not in DISK | {FaultKind.KILL_ROOT})
ON_ENGINE = frozenset(
    {
        FaultKind.KILL_WORKER,
        FaultKind.KILL_ENGINE,
        FaultKind.KILL_SUCCESSOR,
        FaultKind.KILL_STOPPED,
        FaultKind.KILL_ENGINES,
        FaultKind.KILL_PAIR,
        FaultKind.KILL_SPARE,
        FaultKind.KILL_ALL,
        FaultKind.KILL_BOOT,
        FaultKind.HANG_BOOT,
        FaultKind.CRASH_WORKER,
        FaultKind.STOP_WORKER,
        FaultKind.STOP_ENGINE,
        FaultKind.HANG_WORKER,
        FaultKind.HANG_ENGINE,
        FaultKind.STARVE_WORKER,
        FaultKind.STARVE_ENGINE,
        FaultKind.STARVE_BOOT,
        FaultKind.KILL_THREE,
        FaultKind.NO_FDS_ENGINE,
        FaultKind.CONTROL_CUT_ENGINE,
    }
)
# The others are of an engine itself, or of a frontend.
ON_WORKER = frozenset(
    {
        FaultKind.KILL_WORKER,
        FaultKind.CRASH_WORKER,
        FaultKind.STOP_WORKER,
        FaultKind.HANG_WORKER,
        FaultKind.STARVE_WORKER,
    }
)
# Of forms that are checked, and of who checks them.
FORMS = frozenset(
    {
        FaultKind.KILL_FORMS,
        FaultKind.HANG_FORMS,
        FaultKind.KILL_CHECK,
        FaultKind.HANG_CHECK,
        FaultKind.FORM_BOMB,
        FaultKind.KILL_CHECKED,
    }
)
# What stands still must be ended by whoever watches it.
HANGS = frozenset({FaultKind.HANG_WORKER, FaultKind.HANG_ENGINE, FaultKind.HANG_FRONTEND})
# In one of its phases.
IN_BOOT = frozenset({FaultKind.KILL_BOOT, FaultKind.HANG_BOOT})
# Two lives end: that of an engine or a frontend, and its successor's.
TWICE = frozenset({*IN_BOOT, FaultKind.KILL_SUCCESSOR, FaultKind.KILL_ADOPTER})
ON_ROOT = frozenset(
    {
        FaultKind.KILL_ROOT,
        FaultKind.STOP_ROOT,
        FaultKind.FREEZE_TREE,
        FaultKind.TORN_JOURNAL,
    }
)
# Of the connections between a frontend and an engine.
LINKS = frozenset({FaultKind.LINK_CUT, FaultKind.LINK_STALL, FaultKind.LINK_DELAY})
# Of the control channel between the root and a child of it.
CONTROL_CUTS = frozenset({FaultKind.CONTROL_CUT_ENGINE, FaultKind.CONTROL_CUT_FRONTEND})
ON_FRONTEND = frozenset(
    {
        *LINKS,
        FaultKind.KILL_FRONTEND,
        FaultKind.STOP_FRONTEND,
        FaultKind.HANG_FRONTEND,
        FaultKind.STARVE_FRONTEND,
        FaultKind.KILL_ADOPTER,
        FaultKind.KILL_FRONTENDS,
        FaultKind.KILL_FRONT,
        FaultKind.NO_FDS_FRONTEND,
        FaultKind.CONTROL_CUT_FRONTEND,
        FaultKind.FULL_DISK,
        FaultKind.KILL_CHECKED,
    }
)
# Its next descriptor is not to be had.
NO_FDS = frozenset({FaultKind.NO_FDS_FRONTEND, FaultKind.NO_FDS_ENGINE})
# Of the connection between a client and the server.
NETWORK = frozenset({FaultKind.DELAY, FaultKind.LOSS, FaultKind.SILENCE, FaultKind.CUT})
# It may live or die of it.
STARVES = frozenset(
    {
        FaultKind.STARVE_WORKER,
        FaultKind.STARVE_ENGINE,
        FaultKind.STARVE_FRONTEND,
        FaultKind.STARVE_BOOT,
    }
)
KILLS = frozenset(
    {
        *HANGS,
        *CONTROL_CUTS,
        FaultKind.KILL_WORKER,
        FaultKind.KILL_ENGINE,
        FaultKind.KILL_SUCCESSOR,
        FaultKind.KILL_STOPPED,
        FaultKind.KILL_ENGINES,
        FaultKind.KILL_PAIR,
        FaultKind.KILL_SPARE,
        FaultKind.KILL_ALL,
        FaultKind.KILL_BOOT,
        FaultKind.HANG_BOOT,
        FaultKind.CRASH_WORKER,
        FaultKind.KILL_FRONTEND,
        FaultKind.KILL_ADOPTER,
        FaultKind.KILL_THREE,
        FaultKind.KILL_FRONTENDS,
        FaultKind.KILL_FRONT,
        FaultKind.KILL_FORMS,
        FaultKind.HANG_FORMS,
        FaultKind.KILL_CHECKED,
    }
)
STOPS = frozenset(
    {
        FaultKind.STOP_WORKER,
        FaultKind.STOP_ENGINE,
        FaultKind.STOP_FRONTEND,
        FaultKind.STOP_ROOT,
        FaultKind.FREEZE_TREE,
    }
)
CANCELS = frozenset({FaultKind.CANCEL_HTTP, FaultKind.CANCEL_SOCKET})
SLOW = frozenset({FaultKind.NEVER_READS, FaultKind.SLOW_READER})
# These exist on a socket alone.
_ON_SOCKET = frozenset({FaultKind.CANCEL_SOCKET, FaultKind.LEAVE})


class Transport(enum.StrEnum):
    """How a stream travels."""

    SSE = "sse"
    SOCKET = "socket"


@attrs.frozen(kw_only=True)
class Fault:
    """One fault. `rank` is that of the engine or frontend it hits, where it hits one, `worker` that
    of a worker in it; `also` are others that it kills in the same moment, or a link's other end.

    It is made when its probe, a stream of the script with this number, has shown `token` tokens;
    with 0, as soon as the request was sent. A poison acts by itself, where its token of this index
    is computed. `seconds` is how long a stop, a slow reader or want of memory lasts, or how long a
    successor lives; `phase` is that of a boot.
    """

    number: int
    kind: FaultKind
    rank: int
    transport: Transport
    script: int
    token: int
    seconds: float
    also: tuple[str, ...] = ()
    worker: int = 0
    phase: str = ""

    @property
    def place(self) -> str:
        """The process that it hits, by its place in the task tree; "" if it hits none."""
        if self.kind in ON_ROOT:
            return "root"
        if self.kind in ON_FRONTEND:
            return f"frontend {self.rank}"
        if self.kind in FORMS:
            return f"forms {self.rank}"
        if self.kind in ON_WORKER:
            return f"engine {self.rank}/worker {self.worker}"
        return f"engine {self.rank}" if self.kind in ON_ENGINE else ""

    @property
    def deaths(self) -> dict[str, int]:
        """{supervised process: lives that it ends}, where that is certain; a spare's death ends no
        life.

        That of a worker stays inside its engine, unless it dies by a fault of its own: so the root
        learns of it, and suspects what was in the step.
        """
        if self.kind is FaultKind.CRASH_WORKER:
            return {f"engine {self.rank}": 1}
        if self.kind not in KILLS or self.kind in ON_WORKER:
            return {}
        also = dict.fromkeys((place for place in self.also if is_supervised(place)), 1)
        return {self.place: 2 if self.kind in TWICE else 1, **also}


def make_plan(
    seed: int,
    count: int,
    *,
    engines: int,
    frontends: int,
    scripts: int,
    workers: int = 1,
    kinds: Sequence[FaultKind] = DECK,
) -> list[Fault]:
    """The faults of this seed, in order. A longer plan begins as a shorter one does."""
    chance = random.Random(seed)
    plan: list[Fault] = []
    deck: list[FaultKind] = []
    for number in range(count):
        if not deck:
            deck = list(kinds)
            chance.shuffle(deck)
        fault = _make_fault(chance, number, deck.pop(), engines, frontends, scripts=scripts)
        # Each rank of an engine's workers in turn.
        hit = sum(each.kind is fault.kind for each in plan)
        plan.append(attrs.evolve(fault, worker=hit % workers) if fault.kind in ON_WORKER else fault)
    return plan


def _make_fault(  # every draw is made for every kind, so that kinds may be added at the end
    chance: random.Random, number: int, kind: FaultKind, *ranks: int, scripts: int
) -> Fault:
    engines, frontends = ranks
    engine, frontend = chance.randrange(engines), chance.randrange(frontends)
    transport = chance.choice(list(Transport))
    script = chance.randrange(scripts)
    early, late = chance.choice(EARLY_TOKENS), chance.randint(4, LATE_TOKENS_MAX)
    token = early if chance.random() < 0.5 else late
    stopped_s, slow_s, boot_s = map(chance.choice, (STOPS_S, SLOW_S, BOOTS_S))
    seconds = {
        **dict.fromkeys(STOPS - ON_ROOT, WATCHED_STOPS_S[STOPS_S.index(stopped_s)]),
        FaultKind.STOP_ROOT: stopped_s,
        **dict.fromkeys(SLOW, slow_s),
        **dict.fromkeys(STARVES | NO_FDS | {FaultKind.FULL_DISK}, STARVED_S[SLOW_S.index(slow_s)]),
        **dict.fromkeys(NETWORK - {FaultKind.CUT}, slow_s / 2),
        **dict.fromkeys(LINKS - {FaultKind.LINK_CUT}, slow_s / 2),
        FaultKind.KILL_SUCCESSOR: boot_s,
        FaultKind.KILL_ADOPTER: ADOPTIONS_S[BOOTS_S.index(boot_s)],
        FaultKind.FREEZE_TREE: FROZEN_TIMES * stopped_s,
    }
    other = (f"engine {(engine + 1) % engines}",) if engines > 1 else ()
    next_frontend = (f"frontend {(frontend + 1) % frontends}",) if frontends > 1 else ()
    also = {
        FaultKind.KILL_ENGINES: other,
        FaultKind.KILL_PAIR: (f"frontend {frontend}",),
        FaultKind.KILL_SPARE: (SPARE_ENGINE,),
        FaultKind.STARVE_BOOT: (SPARE_ENGINE,),
        FaultKind.KILL_ALL: (*other, SPARE_ENGINE),
        FaultKind.KILL_THREE: (f"engine {engine}/worker 0", SPARE_ENGINE),
        FaultKind.KILL_FRONTENDS: next_frontend,
        FaultKind.KILL_FRONT: (f"engine {engine}", SPARE_FRONTEND),
        **dict.fromkeys(LINKS, (f"engine {engine}",)),
    }
    phases = list(BootPhase)
    phase = phases[BOOTS_S.index(boot_s) % len(phases)] if kind in IN_BOOT else ""
    if kind in CANCELS | NETWORK:
        token = max(1, token)  # of its id, which its first event has, is all that can be named
    return Fault(
        number=number,
        kind=kind,
        rank=frontend if kind in ON_FRONTEND | FORMS else engine,
        transport=Transport.SOCKET if kind in _ON_SOCKET else transport,
        script=script,
        token=token,
        seconds=seconds.get(kind, 0.0),
        also=also.get(kind, ()),
        phase=str(phase),
    )


def is_supervised(place: str) -> bool:
    """Whether the end of what is there is the end of a life: it serves, and is no worker."""
    return "/" not in place and not place.startswith(APART)


def digest(plan: Sequence[attrs.AttrsInstance]) -> str:
    """Tells two plans apart; the same seed gives the same one."""
    text = "\n".join(repr(attrs.astuple(fault)) for fault in plan)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
