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

from ...engine.control_messages import BootPhase
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


class Hit(enum.Enum):
    """Whose process a fault is of, or that it is of none."""

    ROOT = enum.auto()
    FRONTEND = enum.auto()
    FORMS = enum.auto()
    ENGINE = enum.auto()
    WORKER = enum.auto()
    NONE = enum.auto()


class Family(enum.StrEnum):
    """How a fault is made, and judged."""

    KILL = "kill"
    STOP = "stop"
    LINK = "link"
    CLIENT = "client"
    NETWORK = "network"  # of a client
    POISON = "poison"
    MEMORY = "memory"  # no more than it has
    DESCRIPTORS = "descriptors"
    FORM = "form"  # while one is checked
    DISK = "disk"  # of journals


class FaultKind(enum.StrEnum):
    """Kind of fault: its name for people, whose process it hits, and how."""

    hit: Hit
    family: Family

    def __new__(cls, text: str, hit: Hit, family: Family) -> "FaultKind":
        """A string, as of any such enum."""
        made = str.__new__(cls, text)
        made._value_, made.hit, made.family = text, hit, family
        return made

    KILL_WORKER = "kill worker", Hit.WORKER, Family.KILL
    KILL_ENGINE = "kill engine", Hit.ENGINE, Family.KILL
    KILL_FRONTEND = "kill frontend", Hit.FRONTEND, Family.KILL
    # An engine, then the one that boots in its place.
    KILL_SUCCESSOR = "kill successor", Hit.ENGINE, Family.KILL
    # An engine that was stopped before.
    KILL_STOPPED = "kill stopped", Hit.ENGINE, Family.KILL
    # Two engines, which are all.
    KILL_ENGINES = "kill two engines", Hit.ENGINE, Family.KILL
    KILL_PAIR = "kill engine, frontend", Hit.ENGINE, Family.KILL
    # A campaign does this once, as its last act.
    KILL_ROOT = "kill root", Hit.ROOT, Family.KILL
    STOP_WORKER = "stop worker", Hit.WORKER, Family.STOP
    STOP_ENGINE = "stop engine", Hit.ENGINE, Family.STOP
    STOP_FRONTEND = "stop frontend", Hit.FRONTEND, Family.STOP
    STOP_ROOT = "stop root", Hit.ROOT, Family.STOP
    CANCEL_HTTP = "cancel by HTTP", Hit.NONE, Family.CLIENT
    CANCEL_SOCKET = "response.cancel", Hit.NONE, Family.CLIENT
    LEAVE = "leave", Hit.NONE, Family.CLIENT
    FIN = "disconnect FIN", Hit.NONE, Family.CLIENT
    RST = "disconnect RST", Hit.NONE, Family.CLIENT
    HALF_CLOSE = "half-close", Hit.NONE, Family.CLIENT
    NEVER_READS = "never reads", Hit.NONE, Family.CLIENT
    SLOW_READER = "1 byte/s", Hit.NONE, Family.CLIENT
    # And the one that waits to succeed it, at once.
    KILL_SPARE = "kill engine, spare", Hit.ENGINE, Family.KILL
    # The engine, the other one, and what waits to succeed them.
    KILL_ALL = "kill engines, spare", Hit.ENGINE, Family.KILL
    # An engine, then its successor, in a phase of its boot; or that is stopped then, for ever.
    KILL_BOOT = "kill in boot", Hit.ENGINE, Family.KILL
    HANG_BOOT = "stop in boot for ever", Hit.ENGINE, Family.KILL
    # By SIGSEGV, a fault of its own: its engine dies with it.
    CRASH_WORKER = "crash worker", Hit.WORKER, Family.KILL
    # Every process stops, root and spares too.
    FREEZE_TREE = "freeze tree", Hit.ROOT, Family.STOP
    # Whoever watches it must end it.
    HANG_WORKER = "stop worker for ever", Hit.WORKER, Family.KILL
    HANG_ENGINE = "stop engine for ever", Hit.ENGINE, Family.KILL
    HANG_FRONTEND = "stop frontend for ever", Hit.FRONTEND, Family.KILL
    # A request at whose step each worker aborts.
    POISON = "poison", Hit.NONE, Family.POISON
    # It gets no more memory than it has; the last is the successor of an engine that is killed.
    STARVE_WORKER = "starve worker", Hit.WORKER, Family.MEMORY
    STARVE_ENGINE = "starve engine", Hit.ENGINE, Family.MEMORY
    STARVE_FRONTEND = "starve frontend", Hit.FRONTEND, Family.MEMORY
    STARVE_BOOT = "starve in boot", Hit.ENGINE, Family.MEMORY
    # A frontend, then the one that adopts its streams.
    KILL_ADOPTER = "kill frontend, successor", Hit.FRONTEND, Family.KILL
    KILL_THREE = "kill engine, worker, spare", Hit.ENGINE, Family.KILL
    KILL_FRONTENDS = "kill two frontends", Hit.FRONTEND, Family.KILL
    # And the one that waits to succeed the frontend.
    KILL_FRONT = "kill frontend, engine, spare", Hit.FRONTEND, Family.KILL
    DELAY = "network delay", Hit.NONE, Family.NETWORK
    LOSS = "network loss", Hit.NONE, Family.NETWORK
    # Nothing passes, then the connection is reset.
    SILENCE = "network silence", Hit.NONE, Family.NETWORK
    CUT = "network cut", Hit.NONE, Family.NETWORK
    # It can open none more.
    NO_FDS_FRONTEND = "no descriptors frontend", Hit.FRONTEND, Family.DESCRIPTORS
    NO_FDS_ENGINE = "no descriptors engine", Hit.ENGINE, Family.DESCRIPTORS
    # Between a frontend and an engine; or nothing passes on the links of one, at all or at times.
    LINK_CUT = "link cut", Hit.FRONTEND, Family.LINK
    LINK_STALL = "link stall", Hit.FRONTEND, Family.LINK
    LINK_DELAY = "link delay", Hit.FRONTEND, Family.LINK
    # From the root: a child without it ends.
    CONTROL_CUT_ENGINE = "control cut engine", Hit.ENGINE, Family.KILL
    CONTROL_CUT_FRONTEND = "control cut frontend", Hit.FRONTEND, Family.KILL
    KILL_FORMS = "kill form process", Hit.FORMS, Family.FORM
    HANG_FORMS = "stop form process for ever", Hit.FORMS, Family.FORM
    # The copy that checks one form.
    KILL_CHECK = "kill form check", Hit.FORMS, Family.FORM
    HANG_CHECK = "stop form check for ever", Hit.FORMS, Family.FORM
    # A form whose check fills memory, or burns the processor.
    FORM_BOMB = "form bomb", Hit.FORMS, Family.FORM
    # That waits for a form.
    KILL_CHECKED = "kill frontend in check", Hit.FRONTEND, Family.FORM
    # Of a frontend's journal.
    FULL_DISK = "full disk", Hit.FRONTEND, Family.DISK
    TORN_JOURNAL = "kill root, tear journals", Hit.ROOT, Family.DISK


def kinds_of(*families: Family) -> frozenset[FaultKind]:
    """All of these families."""
    return frozenset(kind for kind in FaultKind if kind.family in families)


# Where journals are on disk.
DISK = kinds_of(Family.DISK)
DECK = tuple(kind for kind in FaultKind if kind not in DISK | {FaultKind.KILL_ROOT})
# What stands still must be ended by whoever watches it.
HANGS = frozenset({FaultKind.HANG_WORKER, FaultKind.HANG_ENGINE, FaultKind.HANG_FRONTEND})
# In one of its phases.
IN_BOOT = frozenset({FaultKind.KILL_BOOT, FaultKind.HANG_BOOT})
# Two lives end: that of an engine or a frontend, and its successor's.
TWICE = frozenset({*IN_BOOT, FaultKind.KILL_SUCCESSOR, FaultKind.KILL_ADOPTER})
CONTROL_CUTS = frozenset({FaultKind.CONTROL_CUT_ENGINE, FaultKind.CONTROL_CUT_FRONTEND})
# A life ends, or that of a worker.
KILLS = kinds_of(Family.KILL) | {
    FaultKind.KILL_FORMS,
    FaultKind.HANG_FORMS,
    FaultKind.KILL_CHECKED,
}
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
        match self.kind.hit:
            case Hit.ROOT:
                return "root"
            case Hit.WORKER:
                return f"engine {self.rank}/worker {self.worker}"
            case Hit.NONE:
                return ""
            case hit:
                return f"{hit.name.lower()} {self.rank}"

    @property
    def deaths(self) -> dict[str, int]:
        """{supervised process: lives that it ends}, where that is certain; a spare's death ends no
        life.

        That of a worker stays inside its engine, unless it dies by a fault of its own: so the root
        learns of it, and suspects what was in the step.
        """
        if self.kind is FaultKind.CRASH_WORKER:
            return {f"engine {self.rank}": 1}
        if self.kind not in KILLS or self.kind.hit is Hit.WORKER:
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
        if fault.kind.hit is Hit.WORKER:
            fault = attrs.evolve(fault, worker=hit % workers)
        plan.append(fault)
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
        **dict.fromkeys(kinds_of(Family.STOP), WATCHED_STOPS_S[STOPS_S.index(stopped_s)]),
        FaultKind.STOP_ROOT: stopped_s,
        **dict.fromkeys(SLOW, slow_s),
        **dict.fromkeys(
            kinds_of(Family.MEMORY, Family.DESCRIPTORS) | {FaultKind.FULL_DISK},
            STARVED_S[SLOW_S.index(slow_s)],
        ),
        **dict.fromkeys(kinds_of(Family.NETWORK, Family.LINK), slow_s / 2),
        **dict.fromkeys((FaultKind.CUT, FaultKind.LINK_CUT), 0.0),
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
        **dict.fromkeys(kinds_of(Family.LINK), (f"engine {engine}",)),
    }
    phases = list(BootPhase)
    phase = phases[BOOTS_S.index(boot_s) % len(phases)] if kind in IN_BOOT else ""
    if kind in CANCELS or kind.family is Family.NETWORK:
        token = max(1, token)  # of its id, which its first event has, is all that can be named
    return Fault(
        number=number,
        kind=kind,
        rank=frontend if kind.hit in (Hit.FRONTEND, Hit.FORMS) else engine,
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
