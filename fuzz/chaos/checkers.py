"""Checkers of a campaign: histories and looks from outside against what is promised.

Sans-IO: plain values in, violations out. Nothing here asks the server how it did; the numbers of
the invariants are those of `reference/reliability.md`. Every rule has a test that plants its
breach.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import attrs

from .fault_plan import Fault, FaultKind
from .history import Ending, StreamHistory, Violation

# What a new request may be refused with while no engine is there; those under way wait.
NO_ENGINE = "no_engine"
# What a poison is refused with in the end, and how many lives that may cost.
QUARANTINED, POISON_DEATHS_MAX = "request_quarantined", 2
# Two busy cores hold everybody up for some tenths of a second; a stall of somebody else's engine
# would last as long as its restart.
GAP_MAX_S = 5.0
# Death is noticed by pidfd in milliseconds; this is a frontend's news of it on a loaded machine.
HEALTH_TRUTH_S = 2.0
# Steps that an aborted request may still be part of: the one that runs and the one made up already.
ABORT_STEPS_MAX = 2
# From the frontend's order to the engine that reads it, on two busy cores.
ABORT_NEWS_S = 0.2
# How a form is refused whose checks die.
CRASHED = "the process that checked it"
# What a form is answered with that waited longer for a form process than a busy machine takes to
# start one; its client comes back.
NO_FORMS = "forms_unavailable"
# How the log and /health tell of journals.
GIVEN_UP, DISK_FULL = "the journal is given up", "File too large"
ENDS_EARLY = "the journal ends before its end"
# What one process may gain over a campaign: allocator slack, never a leak per request or fault.
RSS_GROWTH_BYTES_MAX = 64 * 2**20


@attrs.frozen
class Expected:
    """What the undisturbed run of one script gave."""

    token_ids: Sequence[int]
    text: str
    # Where they were asked for: to the last bit, so that they tell two ways to compute apart.
    logprobs: Sequence[float] = ()


@attrs.frozen(kw_only=True)
class Disturbance:
    """What was done to one process, `place` in the tree, and when; `until_s` is its recovery."""

    place: str
    is_death: bool
    since_s: float
    until_s: float
    # Want of memory, or of a journal.
    is_want: bool = False
    # What began so shortly before it, or later, may be forgotten.
    forgets_s: float = -math.inf

    def excuses(self, history: StreamHistory) -> bool:
        """Whether it is a want of this stream's frontend, which may be any before its first event,
        or made it forget the stream."""
        frontends = "frontend" if history.frontend is None else f"frontend {history.frontend}"
        is_forgotten = history.started_s >= self.since_s - self.forgets_s
        return (self.is_want or is_forgotten) and self.place.startswith(frontends)

    @property
    def engine(self) -> str:
        """The engine that it concerns, "" if none."""
        return self.place.partition("/")[0] if self.place.startswith("engine") else ""

    def meets(self, begin_s: float, end_s: float) -> bool:
        """Whether it was on at some moment of this time."""
        return self.since_s <= end_s and begin_s <= self.until_s


@attrs.frozen(kw_only=True)
class Look:
    """One process when everything was quiet."""

    pid: int
    epoch: int
    fds: int
    memfds: int
    rss_bytes: int
    facts: Mapping[str, str | int | float]


@attrs.frozen(kw_only=True)
class QuietLook:
    """The whole run when everything was quiet: {place: its process} and what the kernel lists."""

    places: Mapping[str, Look]
    # All processes that carry the run's mark, and the dead ones nobody has reaped.
    pids: frozenset[int]
    zombies: tuple[int, ...]
    abstract_sockets: int
    shared_memory: tuple[str, ...]
    connections: int


def judge_stream(
    history: StreamHistory,
    expected: Sequence[Expected],
    disturbances: Sequence[Disturbance],
    *,
    engines: int,
    patience: float = 1.0,
) -> list[Violation]:
    """All that was wrong with one stream; [] if it was as promised, its disturbances given.

    It is wholly one of those `expected`: engines of different numerics have each their own.
    `engines` is how many the run has: to find none takes the death of all. With `patience` times
    may be so many times longer, here and below.
    """
    wrong = min((list(_content(history, each)) for each in expected), key=len)
    found = [*history.violations, *wrong]
    if not (patience > 1 and history.code == NO_FORMS):
        found += _ending(history, disturbances, engines)
    begun_s = history.gap_ended_s - history.gap_s
    calm = not any(d.meets(begun_s, history.gap_ended_s) for d in disturbances)
    if history.gap_s > GAP_MAX_S * patience and calm:
        found.append(
            Violation("I7", f"{history.name}: a pause of {history.gap_s:.1f} s without a fault")
        )
    return found


def _content(history: StreamHistory, expected: Expected) -> Iterator[Violation]:
    """I1: the same tokens and text as the undisturbed run, as far as they go."""
    seen = history.token_ids
    whole = history.ending is Ending.FINISHED
    for index, token in enumerate(seen):
        if index >= len(expected.token_ids) or token != expected.token_ids[index]:
            yield Violation("I1", f"{history.name}: token {index} is {token}, not what it must be")
            break
    if history.logprobs != list(expected.logprobs[: len(seen)]):
        yield Violation("I1", f"{history.name}: its logprobs are not those of the undisturbed run")
    if whole and len(seen) < len(expected.token_ids):
        yield Violation(
            "I1", f"{history.name}: ended with {len(seen)} of {len(expected.token_ids)} tokens"
        )
    same = history.text == expected.text if whole else expected.text.startswith(history.text)
    if not same:
        yield Violation("I1", f"{history.name}: the text is not that of the undisturbed run")


def _ending(
    history: StreamHistory, disturbances: Sequence[Disturbance], engines: int
) -> Iterator[Violation]:
    """I3 and I7: one end, and a bad one only where a frontend's death explains it.

    No death of an engine or worker ends a stream. One whose frontend gets no memory may.
    """
    every = [d for d in disturbances if d.is_death]
    deaths = [d for d in every if d.meets(history.started_s, history.ended_s)]
    subject = f"{history.name}: {history.code or history.ending}: {history.message}"
    on_way = [d for d in disturbances if d.meets(history.connected_s, history.ended_s)]
    match history.ending:
        case None | Ending.HANGING:
            yield Violation("I3", f"{history.name}: no end after {len(history.token_ids)} tokens")
        case Ending.FAILED | Ending.REFUSED | Ending.LOST if any(
            d.excuses(history) for d in on_way
        ):
            pass
        case Ending.REFUSED if history.code == NO_ENGINE:
            if len({d.engine for d in deaths if d.engine}) < engines:
                yield Violation("I7", f"{subject}: while an engine was up")
        case Ending.FAILED | Ending.REFUSED:
            yield Violation("I13", f"{subject}: it had to go on")
        case Ending.LOST:
            # A stream may begin on a connection whose frontend has died and has a successor by now.
            deaths = [d for d in on_way if d.is_death]
            wanted = None if history.frontend is None else f"frontend {history.frontend}"
            if not any(
                d.place == wanted if wanted else d.place.startswith("frontend") for d in deaths
            ):
                yield Violation("I7", f"{subject}: its frontend was not killed")
        case Ending.FINISHED | Ending.CANCELLED | Ending.LEFT:
            pass


def judge_quiet(baseline: QuietLook, now: QuietLook) -> list[Violation]:
    """I4, I5, I6, I9: a quiet run holds what it held before, and everything of it is free."""
    found = [*_judge_processes(baseline, now), *judge_free(now)]
    for place, look in now.places.items():
        before = baseline.places.get(place)
        if before is not None:
            found += _judge_holdings(place, before, look)
    for what, before_count, count in (
        ("abstract sockets", baseline.abstract_sockets, now.abstract_sockets),
        ("connections of clients", baseline.connections, now.connections),
    ):
        if count > before_count:
            found.append(Violation("I6", f"{count} {what}, {before_count} at the beginning"))
    new = set(now.shared_memory) - set(baseline.shared_memory)
    if new:
        found.append(Violation("I6", f"named shared memory: {', '.join(sorted(new))}"))
    return found


def _judge_processes(baseline: QuietLook, now: QuietLook) -> Iterator[Violation]:
    lacks, more = baseline.places.keys() - now.places, now.places.keys() - baseline.places
    if lacks or more:
        yield Violation("I5", f"the tree lacks {sorted(lacks)}, and has {sorted(more)} besides")
    strangers = now.pids - {look.pid for look in now.places.values()}
    if strangers:
        yield Violation("I5", f"processes outside of the tree: {sorted(strangers)}")
    if now.zombies:
        yield Violation("I5", f"dead processes that nobody has reaped: {list(now.zombies)}")


def judge_free(now: QuietLook) -> list[Violation]:
    """I4: nothing runs or waits, and every block is free."""
    return [v for place, look in now.places.items() for v in _judge_facts(place, look)]


def _judge_facts(place: str, look: Look) -> Iterator[Violation]:
    facts = look.facts
    # The last is the root's: it balances by that, and waits for it when it stops.
    for name in ("running", "waiting", "requests", "open streams"):
        if facts.get(name, 0) != 0:
            yield Violation("I4", f"{place}: {facts[name]} {name} when all clients have left")
    blocks = facts.get("kv blocks")
    if blocks is not None:
        free, _, total = str(blocks).removesuffix(" free").partition(" of ")
        if free != total:
            yield Violation("I4", f"{place}: KV blocks {blocks} when all clients have left")


def _judge_holdings(place: str, before: Look, now: Look) -> Iterator[Violation]:
    if now.fds > before.fds:
        yield Violation("I6", f"{place}: {now.fds} descriptors, {before.fds} at the beginning")
    if now.memfds > before.memfds:
        yield Violation("I6", f"{place}: {now.memfds} memfds, {before.memfds} at the beginning")
    grown = now.rss_bytes - before.rss_bytes
    if grown > RSS_GROWTH_BYTES_MAX:
        yield Violation("I9", f"{place}: grew by {grown / 2**20:.0f} MiB")


def judge_epochs(
    before: Mapping[str, int], now: Mapping[str, int], deaths: Mapping[str, int]
) -> list[Violation]:
    """I7, I10, I11: exactly those that died have a new epoch, and each death took one spawn.

    {place: epoch} before and after, {place: deaths} between. Every spawn of a run takes the next
    number, so that a restart too many shows as well.
    """
    top, spawns = max(before.values()), sum(deaths.values())
    found = [
        Violation("I7", f"{place}: epoch {epoch} became {now.get(place)}, {dict(deaths)} died")
        for place, epoch in before.items()
        if place not in deaths and now.get(place) != epoch
    ]
    found += [
        Violation("I11", f"{place}: still epoch {now.get(place)} after its death")
        for place in deaths
        if now.get(place, 0) <= top
    ]
    if max(now.values(), default=0) != top + spawns:
        found.append(Violation("I10", f"epochs {dict(now)} after {spawns} deaths above {top}"))
    return found


def judge_lives(fault: Fault, before: Mapping[str, int], now: Mapping[str, int]) -> list[Violation]:
    """The epochs before and after this fault: those of what it ends are new, and no others."""
    judged = judge_epochs(before, now, fault.deaths)
    if fault.kind is FaultKind.HANG_WORKER:  # it may be ended alone, or with its engine
        engine = fault.place.partition("/")[0]
        judged = judged and judge_epochs(before, now, {engine: 1})
    if any(each.startswith("spare") for each in fault.also):  # it may have been a successor by then
        for place, deaths in fault.deaths.items():
            twice = {**fault.deaths, place: deaths + 1}
            judged = judged and judge_epochs(before, now, twice)
    return judged


def judge_poison(
    first: StreamHistory, again: StreamHistory, epochs: Sequence[Mapping[str, int]]
) -> list[Violation]:
    """I10 and I13 of a poison that was sent, and sent again: typed refusals, the first after two
    deaths of engines at most. {place: epoch} before, after the first, and at last."""
    before, after, at_last = epochs
    found = [
        Violation("I13", f"{each.name}: its end was {each.code or each.ending}: {each.message}")
        for each in (first, again)
        if each.code != QUARANTINED
    ]
    deaths = max(after.values()) - max(before.values())
    others = [p for p in before if not p.startswith("engine") and after.get(p) != before[p]]
    if deaths > POISON_DEATHS_MAX or others:
        found.append(Violation("I10", f"{first.name}: {dict(before)} became {dict(after)}"))
    if at_last != after:
        found.append(Violation("I10", f"{again.name}: {dict(after)} became {dict(at_last)}"))
    return [*first.violations, *again.violations, *found]


def judge_form_fault(
    fault: Fault,
    asked: Sequence[StreamHistory],
    bombs: Sequence[StreamHistory],
    pids: Sequence[Mapping[str, int]],
) -> list[Violation]:
    """I7 and I13 of a fault in mid-check: each form is answered on the connection that asked, a
    bomb is refused, and no process is another but the one that died. {place: pid} twice."""
    wrong = [each for each in asked if each.ending is not Ending.FINISHED]
    wrong += [bomb for bomb in bombs if CRASHED not in bomb.message]
    return [
        *(Violation("I13", f"{h.name}: {h.ending} {h.code}: {h.message}") for h in wrong),
        *(
            Violation("I7", f"{place}: pid {pid} was followed by {pids[1].get(place)}")
            for place, pid in pids[0].items()
            if (pids[1].get(place) == pid) is (place in fault.deaths)
        ),
    ]


def judge_starved(
    fault: Fault, before: Mapping[str, int], after: Mapping[str, int]
) -> list[Violation]:
    """The epochs before and after want of memory: it lives, or dies once; where it boots, its
    predecessor was killed besides."""
    place, killed = fault.place.partition("/")[0], int(fault.kind is FaultKind.STARVE_BOOT)
    died = judge_epochs(before, after, {place: 1 + killed})
    return died and judge_epochs(before, after, {place: 1} if killed else {})


def judge_full_disk(said: Sequence[str], rank: int, log: str) -> list[Violation]:
    """I13 of a frontend whose journal could not grow: /health and the log say it, each once.

    `said` is what /health called degraded.
    """
    found = []
    if len(said) != 1 or DISK_FULL not in said[0]:
        found.append(Violation("I13", f"/health of frontend {rank} called degraded: {list(said)}"))
    lines = [line for line in log.splitlines() if GIVEN_UP in line]
    if len(lines) != 1 or DISK_FULL not in lines[0]:
        found.append(Violation("I13", f"the log said of the full disk of frontend {rank}: {lines}"))
    return found


def judge_torn(
    before: Mapping[str, int], after: Mapping[str, int], torn: int, log: str
) -> list[Violation]:
    """I11 and I13 of a server that began anew with journals that were torn: all are later lives,
    and the log says of each torn one that it ends early."""
    top = max(before.values())
    found = [
        Violation("I11", f"{place}: epoch {epoch} after {top}, in another run")
        for place, epoch in after.items()
        if epoch <= top
    ]
    if (lines := log.count(ENDS_EARLY)) != torn:
        found.append(Violation("I13", f"{torn} journals were torn, and the log has {lines}"))
    return found


def judge_abort(
    at_end: Mapping[str, int], when_free: Mapping[str, int], step_s: float, patience: float = 1.0
) -> list[Violation]:
    """I12: within two steps of the order to abort nothing of the request is left in its engine.

    {engine: steps} when the client had the end, and when all was free; nothing else ran,
    and a step takes `step_s` at least (0: not known).
    """
    news = ABORT_NEWS_S * patience / step_s if step_s else math.inf
    return [
        Violation("I12", f"{place}: {when_free[place] - steps} steps more for an aborted request")
        for place, steps in at_end.items()
        if when_free[place] - steps > ABORT_STEPS_MAX + news
    ]


def judge_health(place: str, noticed_s: float | None, patience: float = 1.0) -> list[Violation]:
    """I10: /health says that an engine is not ready soon after it died. None: it never did."""
    if noticed_s is not None and noticed_s <= HEALTH_TRUTH_S * patience:
        return []
    when = "never" if noticed_s is None else f"after {noticed_s:.1f} s"
    return [Violation("I10", f"/health reported the death of {place} {when}")]


def judge_root_death(
    pids: Sequence[int], sockets: Sequence[str], unbroken: Sequence[str], after_s: float
) -> list[Violation]:
    """I5 and I6 after kill -9 of the root: what is still there `after_s` seconds later."""
    found = []
    if pids:
        found.append(Violation("I5", f"{after_s:g} s after the root: processes {list(pids)}"))
    if sockets:
        found.append(Violation("I6", f"{after_s:g} s after the root: sockets {list(sockets)}"))
    found += [Violation("I3", f"{name}: still open after the root's death") for name in unbroken]
    return found
