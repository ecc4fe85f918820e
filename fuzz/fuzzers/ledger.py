"""Fuzzes the ledger against engines behind a network that loses, doubles and delays, and that die,
drain, and come back with another model.

Invariant: every output index is delivered once, in order, with the token of the numerics that the
request began with; every request ends exactly once, and by an error only when it has waited or was
sent as long or as often as it may.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from random import Random

import attrs

from ...engine.errors import EngineError
from ...engine.messages import AddRequest, RequestOutput, ResyncReply, StepOutputs
from ...runtime.config import ReplaySettings
from ...runtime.frontend.ledger import Ledger
from ...runtime.frontend.ledger_entry import Accepted, LedgerEntry, Numerics
from ...runtime.frontend.replay_policy import PlaceOn, ReplayDecision, ReplayPolicy
from ...runtime.journal.judgement import Refusal
from ...transports.links.channel import Peer
from ..doubles.ledger_world import ATTEMPTS_MAX, WAIT_S, Act, LedgerWorld
from ..fuzzer import Fuzzer

ACTS = (
    *("add", "say", "say", "say", "queue", "deliver", "deliver"),
    *("double", "drop", "break", "die", "die", "drain", "wait", "abort"),
)
MakeLedger = Callable[[], Ledger]


def draw(chance: Random, count: int) -> list[Act]:
    """Acts are equally likely, as often as they are listed."""
    return [
        Act(chance.choice(ACTS), chance.randrange(60), chance.randint(1, 3)) for _ in range(count)
    ]


def check(acts: Sequence[Act], make_ledger: MakeLedger) -> Counter[str]:
    """Apply all acts, then the healing."""
    world = LedgerWorld(make_ledger())
    for act in acts:
        world.apply(act)
    world.heal()
    ledger = world.ledger
    reached = Counter({str(refusal): count for refusal, count in ledger.refused.items()})
    reached.update({status.value: count for status, count in ledger.ended.items()})
    reached["sent again"], reached["migrated"] = ledger.sent_again, ledger.migrated
    return reached


class _Credulous(Ledger):
    """Planted: outputs of older attempts count."""

    def _judge(
        self, entry: LedgerEntry | None, peer: Peer, output: RequestOutput
    ) -> Refusal | None:
        refusal = super()._judge(entry, peer, output)
        return None if refusal is Refusal.OLD_ATTEMPT else refusal


class _Stuttering(Ledger):
    """Planted: what comes twice counts twice."""

    def _judge(
        self, entry: LedgerEntry | None, peer: Peer, output: RequestOutput
    ) -> Refusal | None:
        refusal = super()._judge(entry, peer, output)
        return None if refusal is Refusal.REPEATED else refusal


class _Silent(Ledger):
    """Planted: what an engine does not know is not sent again."""

    def handle_resync_reply(self, peer: Peer, reply: ResyncReply, now: float) -> list[LedgerEntry]:
        """Nothing is sent."""
        return []


class _Amnesiac(Ledger):
    """Planted: a replay begins without the tokens that were delivered."""

    def _message(self, entry: LedgerEntry) -> AddRequest:
        return attrs.evolve(super()._message(entry), output_token_ids=[])


class _Repeating(Ledger):
    """Planted: a replay keeps its attempt."""

    def _place(self, entry: LedgerEntry, peer: Peer, ready: Numerics | None = None) -> None:
        attempt = entry.attempt
        super()._place(entry, peer, ready)
        entry.attempt = attempt or entry.attempt


class _Patient(Ledger):
    """Planted: what is missing is refused, and nothing said of it."""

    def handle_outputs(self, peer: Peer, outputs: StepOutputs, now: float) -> Accepted:
        """Never out of order."""
        return attrs.evolve(super().handle_outputs(peer, outputs, now), out_of_order=False)


class _Ending(Ledger):
    """Planted: a refusal for draining ends the request."""

    def handle_outputs(self, peer: Peer, outputs: StepOutputs, now: float) -> Accepted:
        """Handle outputs as if all errors were alike."""
        alike = [attrs.evolve(output, error_code="") for output in outputs.outputs]
        return super().handle_outputs(peer, attrs.evolve(outputs, outputs=alike), now)


class _Stubborn(ReplayPolicy):
    """Planted: attempts have no bound."""

    def decide(self, now: float, queued: Iterable[LedgerEntry] = ()) -> list[ReplayDecision]:
        """Decide as if nothing had been sent before."""
        for entry in self._waiting:
            entry.attempts = 0
        return super().decide(now, queued)


class _Careless(ReplayPolicy):
    """Planted: any engine will do."""

    def _decide(self, entry: LedgerEntry, now: float) -> ReplayDecision | None:
        return PlaceOn(entry, list(self._engines), True) if self._engines else None


class _Hasty(ReplayPolicy):
    """Planted: what cannot be placed at once is given up."""

    def _late_at(self, entry: LedgerEntry) -> float:
        return entry.lost_at


class _Charging(ReplayPolicy):
    """Planted: a refusal for draining begins the wait anew, for ever."""

    def handle_refused(self, entry: LedgerEntry, error: EngineError, now: float) -> None:
        """Handle a refusal as a death."""
        self.handle_lost(entry, error, now)


def _maker(ledger: type[Ledger], policy: type[ReplayPolicy] = ReplayPolicy) -> MakeLedger:
    settings = ReplaySettings(replay_wait_s=WAIT_S, replay_attempts_max=ATTEMPTS_MAX)
    return lambda: ledger(replays=policy(settings))


FUZZER = Fuzzer[Act, MakeLedger](
    name="ledger",
    invariant="each index is delivered once and in order, each request ends exactly once",
    draw=draw,
    check=check,
    target=_maker(Ledger),
    faults={
        "outputs of older attempts count": _maker(_Credulous),
        "what comes twice counts twice": _maker(_Stuttering),
        "unknown requests are not sent again": _maker(_Silent),
        "a replay forgets what was delivered": _maker(_Amnesiac),
        "a replay keeps its attempt": _maker(_Repeating),
        "nothing is said of what is missing": _maker(_Patient),
        "a drain ends a stream": _maker(_Ending),
        "attempts have no bound": _maker(Ledger, _Stubborn),
        "any engine will do": _maker(Ledger, _Careless),
        "nothing waits for an engine": _maker(Ledger, _Hasty),
        "a refusal for draining is charged": _maker(Ledger, _Charging),
    },
    round_events=60,
    smoke_rounds=300,
    reaches=frozenset(
        {
            *("unknown_request", "old_attempt", "repeated", "gap"),
            *("finished", "failed", "aborted", "sent again", "migrated"),
        }
    ),
)
