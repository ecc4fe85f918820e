"""Driver of a frontend's ledger: what engines say in; what counts, is sent and is decided out."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from triolet.engine.errors import EngineDraining, RequestRecalled
from triolet.engine.messages import (
    AbortRequests,
    AddRequest,
    FinishReason,
    GrantCredit,
    RequestEvent,
    RequestEventKind,
    RequestKey,
    RequestOutput,
    ResyncReply,
    StepOutputs,
)
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.config import ReplaySettings
from triolet.runtime.errors import RequestIdInUse
from triolet.runtime.frontend.ledger import ATTEMPTS_OF_A_TERM, Ledger
from triolet.runtime.frontend.ledger_entry import LedgerEntry, Send
from triolet.runtime.frontend.replay_policy import Fail, ReplayDecision, ReplayPolicy
from triolet.runtime.journal.records import Placement
from triolet.transports.links.channel import Peer

from ...runtime.children.acting_engine import READY as ACTING
from ..suite import Driver, joined, limit, numbers

READY = attrs.evolve(ACTING, max_model_len=64, numerics_id="same")
KINDS = {
    "ready": READY,
    "unlike": attrs.evolve(READY, numerics_id="other"),
    "small": attrs.evolve(READY, max_model_len=11),
    "fitting": attrs.evolve(READY, max_model_len=12),
    "rough": attrs.evolve(READY, bitwise=False),
}
REFUSALS = {"draining": EngineDraining, "recalled": RequestRecalled}


def peer_of(word: str) -> Peer:
    """`1.2` is epoch 2 of engine 1."""
    rank, epoch = word.split(".")
    return Peer("engine", int(rank), int(epoch))


def shown(peer: Peer) -> str:
    """`1.2` again."""
    return f"{peer.rank}.{peer.epoch}"


@attrs.define(eq=False)
class LedgerDriver(Driver):
    """A ledger, its clock, and the kinds of engines that requests are placed on."""

    machine: Ledger = attrs.field(factory=Ledger)
    now: float = 0.0
    # Messages that were returned for sending, as they are by now.
    sent: dict[str, AddRequest] = attrs.field(factory=dict)
    _counted: Counter[str] = attrs.field(factory=Counter)

    def entry(self, name: str) -> LedgerEntry:
        """Of a request in flight."""
        entry = self.machine.get(name)
        assert entry is not None, f"{name} is not in flight"
        return entry

    def seen(self) -> Iterator[str]:
        """What is counted now and was not before."""
        self.machine.check_invariants()
        machine = self.machine
        counts = Counter({f"refused as {each.value}": n for each, n in machine.refused.items()})
        counts.update({each.value: n for each, n in machine.ended.items()})
        counts["ended by length"] = machine.ended_by_length
        counts["sent again"] = machine.sent_again
        counts["migrated"] = machine.migrated
        counts["migrated inexactly"] = machine.migrated_inexactly
        yield from (f"  counted: {name}" for name in (counts - self._counted).elements())
        self._counted = counts

    def ledger(self, *, term: str = "0", wait: str = "30", attempts: str = "16") -> list[str]:
        """Begin."""
        settings = ReplaySettings(replay_wait_s=float(wait), replay_attempts_max=int(attempts))
        self.machine = Ledger(term=int(term), replays=ReplayPolicy(settings))
        self.now = 0.0
        return []

    def at(self, now: str) -> list[str]:
        """The time is this from now on."""
        self.now = float(now)
        return []

    # ---- what the frontend wants

    def add(self, name: str, peer: str, *, on: str = "ready", **fields: str) -> Iterator[str]:
        """add ID PEER [on=KIND credit= output=1,2 engine= priority= admitted_ns= inexact_ok=1]"""
        yield from self._placed(
            lambda: self.machine.handle_add(
                request_of(name, fields), peer_of(peer), self.now, ready=KINDS[on]
            )
        )

    def adopt(self, name: str, peer: str, attempt: str, **fields: str) -> Iterator[str]:
        """One that an earlier term has sent so."""
        sent = attrs.evolve(request_of(name, fields), attempt=number_of(attempt))
        ready = Placement(name, 1, None, "same")
        yield from self._refusals(
            lambda: self.machine.handle_adopted(sent, peer_of(peer), self.now, ready=ready)
        )

    def grant(self, name: str, credit: str) -> Iterator[str]:
        """Its client consumed."""
        yield said(self.machine.handle_grant(name, int(credit)))

    def abort(self, name: str) -> Iterator[str]:
        """Its client has left."""
        yield said(self.machine.handle_abort(name, self.now))

    def stopped(self, name: str) -> Iterator[str]:
        """A stop string was found."""
        yield said(self.machine.handle_stopped(name, self.now))

    # ---- what engines say

    def rows(self, peer: str, *rows: str) -> Iterator[str]:
        """rows PEER ATTEMPT:INDEX:TOKEN ..."""
        split = [row.split(":") for row in rows]
        columns = [(number_of(attempt), int(index), int(token)) for attempt, index, token in split]
        yield from self._hear(peer, StepOutputs(1, [], *map(list, zip(*columns, strict=True))))

    def output(
        self, peer: str, name: str, *, attempt: str = "1", first: str, tokens: str = "",
        ends: str = "", event: str = "", error: str = "",
    ) -> Iterator[str]:  # fmt: skip
        """A whole output of one request."""
        output = RequestOutput(
            request_id=name,
            attempt=int(attempt),
            first_index=int(first),
            token_ids=numbers(tokens),
            finish_reason=FinishReason(ends) if ends else None,
            events=(RequestEvent(RequestEventKind(event), 3),) if event else (),
            error="not begun" if error else "",
            error_code=REFUSALS[error].code if error else "",
        )
        yield from self._hear(peer, StepOutputs(1, [output]))

    def up(self, peer: str) -> Iterator[str]:
        """A link begins: what its first message asks for."""
        live = self.machine.handle_peer_up(peer_of(peer)).live
        for each in live:
            yield f"wants {each.request_id}/{numbered(each.attempt)} from {each.next_index}" + (
                "" if each.credit is None else f" up to {each.credit}"
            )
        yield from [] if live else ["wants nothing"]

    def unknown(self, peer: str, *keys: str) -> Iterator[str]:
        """The engine knows none of these attempts, each ID/ATTEMPT."""
        named = [key.split("/") for key in keys]
        reply = ResyncReply([RequestKey(name, number_of(attempt)) for name, attempt in named])
        lost = self.machine.handle_resync_reply(peer_of(peer), reply, self.now)
        yield f"lost: {joined(each.request.request_id for each in lost) or 'none'}"

    def gone(self, peer: str, cause: str = "SIGKILL") -> Iterator[str]:
        """The engine is."""
        lost = self.machine.handle_peer_gone(peer_of(peer), cause, self.now)
        yield f"lost: {joined(each.request.request_id for each in lost) or 'none'}"

    # ---- where to go on

    def engines(self, *there: str, expected: str = "", ranks: str = "0,1") -> list[str]:
        """engines PEER:KIND ... [expected=NUMERICS,... ranks=]: who takes work, who may come."""
        kinds = [word.split(":") for word in there]
        self.machine.replays.handle_engines(
            {peer_of(peer): KINDS[kind] for peer, kind in kinds},
            frozenset(expected.split(",")) - {""},
            frozenset(numbers(ranks)),
        )
        return []

    def decide(self, *placed: str) -> Iterator[str]:
        """Who need not wait any more; and where those that an engine has would go on as well."""
        decisions = self.machine.replays.decide(self.now, map(self.entry, placed))
        yield from map(described, decisions)
        replays = self.machine.replays
        yield f"{len(replays)} may wait until {replays.next_deadline():g}"

    def replay(self, name: str, peer: str, *, on: str = "ready", exact: str = "1") -> Iterator[str]:
        """Another engine gets it."""
        yield from self._placed(
            lambda: self.machine.handle_replay(
                self.entry(name), peer_of(peer), self.now, ready=KINDS[on], exact=exact == "1"
            )
        )

    def recall(self, name: str) -> Iterator[str]:
        """Ask its engine whether it still waits."""
        yield said(self.entry(name).recall())

    def give_up(self, name: str) -> list[str]:
        """No engine goes on with it."""
        self.machine.handle_give_up(self.entry(name), self.now)
        return []

    # ---- looks

    def state(self) -> Iterator[str]:
        """All that are in flight."""
        for entry in self.machine.entries():
            where = "nowhere" if entry.peer is None else f"at {shown(entry.peer)}"
            home = ", at home" * entry.is_at_home + ", queued" * entry.is_queued
            name, status = (
                f"{entry.request.request_id}/{numbered(entry.attempt)}",
                entry.state.status,
            )
            yield f"{name} {status.value} {where}{home}: {joined(entry.token_ids)}".rstrip(" :")
        yield f"{len(self.machine)} in flight"

    def count(self, peer: str, up_to: str = "end") -> Iterator[str]:
        """How many an engine has, of those that it had when it had taken an attempt."""
        yield f"{self.machine.placed.count(peer_of(peer), up_to=limit(up_to))}"

    def message(self, name: str) -> Iterator[str]:
        """The last message with it, as it is now."""
        yield described_add(self.sent[name])

    def positions(self, *names: str) -> Iterator[str]:
        """How many have their turn before each."""
        yield joined(self.machine.replays.position(self.entry(name)) for name in names)

    def _placed(self, place: Callable[[], AddRequest]) -> Iterator[str]:
        def send() -> None:
            message = place()
            self.sent[message.request_id] = message

        before = dict(self.sent)
        yield from self._refusals(send)
        yield from (described_add(m) for name, m in self.sent.items() if before.get(name) is not m)

    def _refusals(self, act: Callable[[], object]) -> Iterator[str]:
        try:
            act()
        except RequestIdInUse as error:
            yield f"{type(error).__name__}"

    def _hear(self, peer: str, step: StepOutputs) -> Iterator[str]:
        accepted = self.machine.handle_outputs(peer_of(peer), step, self.now)
        for entry in accepted.tokens:
            yield f"{entry.request.request_id} takes {entry.token_ids[-1]}"
        for entry, output in accepted.outputs:
            takes = [f"takes {joined(output.token_ids)}"] * bool(output.token_ids)
            ends = [f"ends by {each.value}" for each in [output.finish_reason] if each]
            yield f"{entry.request.request_id} {', '.join([*takes, *ends])}"
        yield from (f"{each.request.request_id} was not begun" for each in accepted.refused)
        if accepted.out_of_order:
            yield "the link is to begin anew"
        if accepted.queued:
            yield "one is queued there"


def number_of(attempt: str) -> int:
    """`2+4` is the fourth of term 2."""
    term, _, number = attempt.rpartition("+")
    return int(term or 0) * ATTEMPTS_OF_A_TERM + int(number)


def numbered(attempt: int) -> str:
    """`2+4` again."""
    term, number = divmod(attempt, ATTEMPTS_OF_A_TERM)
    return f"{term}+{number}" if term else f"{number}"


def request_of(name: str, fields: dict[str, str]) -> AddRequest:
    """A prompt of two tokens, ten to come."""
    output, credit = numbers(fields.pop("output", "")), limit(fields.pop("credit", "end"))
    numeric: dict[str, Any] = {field: int(value) for field, value in fields.items()}
    return AddRequest(
        request_id=name,
        attempt=0,
        prompt_token_ids=[1, 2],
        sampling=SamplingParams(seed=1, max_tokens=10),
        output_token_ids=output,
        credit=credit,
        **numeric,
    )


def described_add(message: AddRequest) -> str:
    """A message to an engine."""
    tokens = f" behind {joined(message.output_token_ids)}" if message.output_token_ids else ""
    credit = "" if message.credit is None else f" up to {message.credit}"
    again = " again" * message.replayed
    return f"send {message.request_id}/{numbered(message.attempt)}{again}{tokens}{credit}"


def described(decision: ReplayDecision) -> str:
    """A decision on a request."""
    name = decision.entry.request.request_id
    if isinstance(decision, Fail):
        return f"{name} ends: {decision.error}"
    there = joined(map(shown, decision.peers))
    return f"{name} may go to {there}{'' if decision.exact else ', inexactly'}"


def said(send: Send | None) -> str:
    """A message that is to be sent, if one is."""
    match send:
        case Send(peer, AbortRequests([key], if_queued)):
            name = f"{key.request_id}/{numbered(key.attempt)}"
            return f"{'recall' if if_queued else 'abort'} {name} at {shown(peer)}"
        case Send(peer, GrantCredit([grant])):
            return f"grant {grant.request_id}/{grant.attempt} up to {grant.credit} at {shown(peer)}"
    assert send is None
    return "say nothing"
