"""What happens in one simulation: its setup, the requests of clients, and the faults. Plain values.

All of it is drawn from a seed before anything runs, so that any part of it can be left out and the
rest be run again.
"""

import enum
import math
from random import Random

import attrs

from .takeover.plan import Death, Talk

ENGINES_MAX = 3
# Of one engine: more than there are faults.
RESTARTS_MAX = 1000
FRONTENDS_MAX = 2
# All requests and faults begin within so many seconds of virtual time from when requests are taken.
BEGIN_S = 1.0
# A fault that waits for tokens comes so much later at last.
PROGRESS_S = 2.0
# As in the product; a short one is over before a successor comes.
REPLAY_WAIT_S = 30.0
PROMPT_TOKENS_MAX = 24
OUTPUT_TOKENS_MAX = 40
# Of these prompts begin alike, so that they share blocks.
SHARED_PROMPT = [17 + 5 * place % 200 for place in range(12)]


@attrs.frozen(kw_only=True)
class Setup:
    """Of the whole simulation; `seed` decides what is not drawn here."""

    seed: int = 0
    engines: int = 2
    frontends: int = 1
    spare_engines: int = 0
    spare_frontends: int = 0
    kv_blocks: int = 32
    max_num_seqs: int = 8
    window_tokens: int = 256
    # Engines of this rank and above have another numerics id, and other tokens.
    unlike_from: int = ENGINES_MAX
    # Of streams whose engine is gone, for another one.
    replay_wait_s: float = REPLAY_WAIT_S
    # Clients come when every engine is linked, not when the first is.
    waits_for_all: bool = True
    # Longer journals have snapshots of the streams that pin their oldest records.
    journal_bytes: int = 2**20
    # Share of the killed that hang in the kernel for a while.
    hanging: float = 0.0
    # Engines are on other machines: their silence is noticed.
    is_apart: bool = False
    # Connections beyond these end with their process.
    slots: int = 16
    # Other machines, with one engine each; how fast their clocks go, and how late what they and
    # the head say to each other is in their first life.
    hosts: int = 0
    host_rate: float = 1.0
    host_delay_s: float = 0.0


@attrs.frozen(kw_only=True)
class Request:
    """What one client asks, and how it behaves."""

    name: str
    at_s: float
    frontend: int
    prompt: list[int]
    seed: int
    max_tokens: int
    min_tokens: int = 0
    # It ends at this output index by a stop token, if at all.
    stop_at: int | None = None
    logprobs: int | None = None
    n: int = 1
    streaming: bool = True
    priority: int = 0
    # It leaves when it has so many tokens.
    leaves_after: float = math.inf
    # It leaves after so many seconds, whatever has come.
    patience_s: float = math.inf
    # Between two reads.
    pause_s: float = 0.0
    # The engine that computes the output token at this index is killed; of poison, its worker
    # crashes.
    fatal_at: int | None = None
    is_poison: bool = False
    # Or hangs, instead of a crash.
    hangs: bool = False
    # Engines with other tokens may go on with it.
    inexact_ok: bool = False
    # It ends by a stop string, as soon as the text of so many tokens has that; if it is one.
    stop_text_at: int | None = None
    # Its client allows so many tokens at a time; None: all.
    grants: int | None = None
    # It goes on in the next life of its frontend; its client comes back after so many seconds, or
    # never.
    is_resumable: bool = True
    back_after_s: float = 0.0
    # When it has finished, its client reads it again after so many seconds, if at all.
    again_after_s: float = math.inf
    # Each life that adopts it is killed while it does.
    ends_adopters: bool = False
    # What its client wants the answer to be like is checked first: how that ends.
    form: "Form | None" = None


class Form(enum.StrEnum):
    """How the check of a form ends, if nothing comes between."""

    SERVED = "served"
    REFUSED = "refused"
    CRASHES = "crashes"  # each time


class FaultKind(enum.StrEnum):
    """What goes wrong."""

    KILL_ENGINE = "kill engine"
    KILL_AT_STORE = "kill at store"
    CRASH_ENGINE = "crash engine"
    CRASH_AT_STORE = "crash at store"
    KILL_FRONTEND = "kill frontend"
    CRASH_FRONTEND = "crash frontend"  # by a fault of its own
    KILL_FRONTEND_AT_STORE = "kill frontend at store"
    KILL_ADOPTER = "kill adopter"  # a frontend, and then its successor at one of its first stores
    KILL_BOTH = "kill both"  # a frontend and an engine
    KILL_SPARE = "kill spare"
    STOP_ENGINE = "stop engine"
    STOP_FRONTEND = "stop frontend"
    WORKER_DIES = "worker die"
    WORKER_CRASHES = "worker crash"
    WORKER_FAILS = "worker fail"
    WORKER_HANGS = "worker hang"
    CUT = "cut"
    DROP = "drop"
    DOUBLE = "double"
    SLOW = "slow"
    BREAK = "break"
    NO_SPAWN = "no spawn"
    DRAIN = "drain"
    ADD_ENGINE = "add engine"
    REMOVE_ENGINE = "remove engine"
    KILL_FORMS = "kill forms"
    STOP_FORMS = "stop forms"
    KILL_CHECK = "kill check"  # the copy that checks a form
    KILL_HOST = "kill host"  # the process of another machine, and so all that is there
    HOST_OFF = "host off"  # the machine: nothing says so
    CUT_HOST = "cut host"
    MUTE_HOST = "mute host"  # its head hears nothing of it
    DEAFEN_HOST = "deafen host"  # nothing of its head arrives


# At a store to memory that outlives the process.
AT_STORE = frozenset(
    {FaultKind.KILL_AT_STORE, FaultKind.CRASH_AT_STORE, FaultKind.KILL_FRONTEND_AT_STORE}
)
OF_WORKER = frozenset(
    {
        *(FaultKind.WORKER_DIES, FaultKind.WORKER_CRASHES),
        *(FaultKind.WORKER_FAILS, FaultKind.WORKER_HANGS),
    }
)
CRASHES = AT_STORE | OF_WORKER
CRASHES |= {FaultKind.KILL_ENGINE, FaultKind.CRASH_ENGINE}
CRASHES |= {
    FaultKind.KILL_FRONTEND,
    FaultKind.CRASH_FRONTEND,
    FaultKind.KILL_ADOPTER,
    FaultKind.KILL_BOTH,
}
CRASHES |= {FaultKind.KILL_SPARE}
# Not drawn, so that a planted bug keeps its seeds: in plans that are made by hand, with all others.
BY_HAND = (FaultKind.ADD_ENGINE, FaultKind.REMOVE_ENGINE)
# Of who checks forms; drawn where there are some.
OF_FORMS = (FaultKind.KILL_FORMS, FaultKind.STOP_FORMS, FaultKind.KILL_CHECK)
# Of other machines; drawn by `hosts.plan` alone.
OF_HOSTS = (
    *(FaultKind.KILL_HOST, FaultKind.HOST_OFF),
    *(FaultKind.CUT_HOST, FaultKind.MUTE_HOST, FaultKind.DEAFEN_HOST),
)
# One simulation of so many has kills that hang in the kernel: such a share of all.
HANGING_OF, HANGING = 8, 0.25
# One simulation of so many has its engines on other machines, and two cuts more.
APART_OF = 8
# One simulation of so many has forms.
FORMS_OF = 8
# And one of so many a frontend that crashes of itself again and again.
CRASHING_FRONTEND_OF = 8
_KINDS = (
    *[FaultKind.KILL_ENGINE] * 5,
    *[FaultKind.KILL_AT_STORE] * 4,
    *[FaultKind.CRASH_AT_STORE] * 2,
    FaultKind.CRASH_ENGINE,
    *[FaultKind.KILL_FRONTEND] * 3,
    *[FaultKind.KILL_FRONTEND_AT_STORE] * 4,
    *[FaultKind.KILL_ADOPTER] * 2,
    *[FaultKind.KILL_BOTH] * 2,
    *[FaultKind.STOP_ENGINE] * 3,
    FaultKind.STOP_FRONTEND,
    FaultKind.KILL_SPARE,
    *[FaultKind.WORKER_DIES] * 2,
    FaultKind.WORKER_CRASHES,
    FaultKind.WORKER_FAILS,
    FaultKind.WORKER_HANGS,
    *[FaultKind.CUT] * 2,
    FaultKind.DROP,
    FaultKind.DOUBLE,
    *[FaultKind.SLOW] * 2,
    *[FaultKind.BREAK] * 3,
    FaultKind.NO_SPAWN,
    *[FaultKind.DRAIN] * 2,
)


@attrs.frozen(kw_only=True)
class Fault:
    """One fault: at this time, and when clients have so many tokens, or `PROGRESS_S` later; then
    after so many steps of the tasks of the process that it hits, or so many of its stores.
    """

    kind: FaultKind
    at_s: float
    tokens: int = 0
    steps: int = 0
    engine: int = 0
    frontend: int = 0
    host: int = 0
    for_s: float = 0.0
    count: int = 1
    # Half of the bytes of the last store are made.
    is_torn: bool = False


Event = Setup | Request | Fault | Talk | Death


def draw(chance: Random, count: int) -> list[Event]:
    """A setup, then about `count` requests and faults, at least three of which are crashes."""
    is_unlike = chance.random() < 0.2
    setup = Setup(
        seed=chance.randrange(2**32),
        engines=chance.choice((1, 2, 2, 2, 2, 3)),
        frontends=chance.choice((1, 1, 2)),
        spare_engines=chance.choice((0, 0, 1)),
        spare_frontends=chance.choice((0, 0, 0, 1)),
        kv_blocks=chance.choice((17, 20, 32, 64)),
        max_num_seqs=chance.choice((2, 4, 8)),
        window_tokens=chance.choice((4, 16, 256)),
        unlike_from=1 if is_unlike else ENGINES_MAX,
        replay_wait_s=chance.choice((REPLAY_WAIT_S, 0.05, 0.3)) if is_unlike else REPLAY_WAIT_S,
        waits_for_all=chance.random() < 0.8,
        journal_bytes=chance.choice((0, 2000, 8000, 2**20)),
    )
    crashes = chance.randint(3, max(3, count // 3))
    others = chance.randint(0, 3)
    requests = [
        _draw_request(chance, setup, number)
        for number in range(chance.randint(3, max(4, count // 2)))
    ]
    tokens = sum(request.n * request.max_tokens for request in requests)
    faults = [
        _draw_fault(chance, setup, tokens, is_crash=place < crashes)
        for place in range(crashes + others)
    ]
    if not Random(f"hangs {setup.seed}").randrange(HANGING_OF):
        setup = attrs.evolve(setup, hanging=HANGING)
    apart = Random(f"other machines {setup.seed}")
    if not apart.randrange(APART_OF):
        setup = attrs.evolve(setup, is_apart=True)
        faults += [_draw_cut(apart, setup, tokens) for _ in range(2)]
    forms = Random(f"forms {setup.seed}")
    if not forms.randrange(FORMS_OF):
        requests = [attrs.evolve(each, form=_draw_form(forms)) for each in requests]
        faults += [_draw_fault_of_forms(forms, setup, tokens, kind) for kind in OF_FORMS]
    crashes_of_one = Random(f"crashes of a frontend {setup.seed}")
    if not crashes_of_one.randrange(CRASHING_FRONTEND_OF):
        faults += _draw_crashes_of_a_frontend(crashes_of_one, setup, tokens)
    return [setup, *requests, *faults]


def _draw_cut(chance: Random, setup: Setup, tokens: int) -> Fault:
    return Fault(
        kind=FaultKind.CUT,
        at_s=0.0,
        tokens=chance.randrange(tokens),
        engine=chance.randrange(setup.engines),
        frontend=chance.randrange(setup.frontends),
        for_s=chance.choice((0.6, 1.1, 2.0, 6.0)),
    )


def _draw_crashes_of_a_frontend(chance: Random, setup: Setup, tokens: int) -> list[Fault]:
    """Up to more than what would give up a place that is no frontend's."""
    frontend = chance.randrange(setup.frontends)
    return [
        Fault(
            kind=FaultKind.CRASH_FRONTEND,
            at_s=0.0,
            tokens=chance.randrange(tokens),
            steps=chance.choice((0, chance.randrange(10))),
            frontend=frontend,
        )
        for _ in range(chance.randint(1, 5))
    ]


def _draw_form(chance: Random) -> Form | None:
    return chance.choice((None, *[Form.SERVED] * 4, Form.REFUSED, Form.CRASHES))


def _draw_fault_of_forms(chance: Random, setup: Setup, tokens: int, kind: FaultKind) -> Fault:
    return Fault(
        kind=kind,
        at_s=round(chance.random() ** 2 * BEGIN_S, 4),
        tokens=chance.randrange(tokens) if chance.random() < 0.3 else 0,
        steps=chance.randrange(20),
        frontend=chance.randrange(setup.frontends),
        for_s=chance.choice((0.02, 0.3, 1.0, 4.0)),
    )


def _draw_request(chance: Random, setup: Setup, number: int) -> Request:
    shared = SHARED_PROMPT if chance.random() < 0.4 else []
    own = [chance.randrange(8, 2000) for _ in range(chance.randint(1, 12))]
    max_tokens = chance.choice((1, 8, 20, OUTPUT_TOKENS_MAX, OUTPUT_TOKENS_MAX))
    leaves = chance.random() < 0.25
    is_poison = chance.random() < 0.06
    has_stop_text, streaming = chance.random() < 0.15, chance.random() < 0.8
    return Request(
        name=f"request-{number}",
        at_s=round(chance.random() ** 2 * BEGIN_S, 4),
        frontend=chance.randrange(setup.frontends),
        prompt=[*shared, *own],
        seed=chance.randrange(2**31),
        max_tokens=max_tokens,
        min_tokens=chance.choice((0, 0, 0, 3)) if max_tokens > 3 and not has_stop_text else 0,
        stop_at=chance.randrange(max_tokens) if chance.random() < 0.2 else None,
        logprobs=chance.choice((None, None, 0, 2)),
        n=1 if is_poison else chance.choice((1, 1, 1, 1, 1, 2)),
        streaming=streaming,
        priority=chance.choice((0, 0, 0, 1)),
        leaves_after=chance.randrange(max_tokens) if leaves else math.inf,
        patience_s=chance.choice((0.05, 0.2, 0.6)) if chance.random() < 0.2 else math.inf,
        pause_s=chance.choice((0.0, 0.0, 0.0, 0.01, 0.1)),
        fatal_at=chance.randrange(max_tokens) if is_poison else None,
        is_poison=is_poison,
        inexact_ok=setup.unlike_from < setup.engines and chance.random() < 0.5,
        stop_text_at=chance.randrange(max_tokens) if has_stop_text else None,
        grants=chance.choice((1, 4, 16)) if streaming and chance.random() < 0.15 else None,
        is_resumable=chance.random() < 0.85,
        back_after_s=chance.choice((0.0, 0.0, 0.02, 0.3, 1.0, math.inf)),
        again_after_s=chance.choice((0.1, 0.5)) if chance.random() < 0.3 else math.inf,
        ends_adopters=chance.random() < 0.03,
    )


def _draw_fault(chance: Random, setup: Setup, tokens: int, *, is_crash: bool) -> Fault:
    kinds = [kind for kind in _KINDS if (kind in CRASHES) == is_crash]
    if not setup.spare_engines + setup.spare_frontends:
        kinds = [kind for kind in kinds if kind is not FaultKind.KILL_SPARE]
    kind = chance.choice(kinds)
    # A step of the engine makes some seven stores.
    most = 30 if kind in AT_STORE else 100
    return Fault(
        kind=kind,
        at_s=round(chance.random() * BEGIN_S, 4) if chance.random() < 0.3 else 0.0,
        tokens=chance.randrange(tokens) if chance.random() < 0.7 else 0,
        steps=chance.choice((0, chance.randrange(10), chance.randrange(most))),
        engine=chance.randrange(setup.engines),
        frontend=chance.randrange(setup.frontends),
        for_s=chance.choice((0.02, 0.3, 1.0, 4.0)),
        count=chance.choice((1, 1, 3)),
        is_torn=chance.random() < 0.5,
    )
