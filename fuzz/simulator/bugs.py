"""Bugs planted into the runtime, each one rule broken, which the simulator must find.

Each is a context manager that replaces a method for the time of a simulation. What they do to a
server is what they would do in production: a stream that hangs, a token twice, a block that is
never free again. Rules that a second rule covers are not here (a ledger that took a duplicate, say:
links never bring one): the fuzzers of single machines find those.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import attrs

from ...engine.batch_table import BatchTable
from ...engine.block_names import BlockNames
from ...engine.core.engine_core import EngineCore
from ...engine.core.kv_cache_manager import KVCacheManager
from ...engine.errors import RequestRecalled
from ...engine.messages import LiveRequest
from ...engine.process import step_loop
from ...engine.process.main import EngineProcess
from ...nurseries.processes.hang_watch import HangWatch
from ...runtime.fleet.engine_fleet import EngineFleet
from ...runtime.fleet.form_fleet import FormFleet
from ...runtime.fleet.frontend_fleet import FrontendFleet
from ...runtime.fleet.quarantine import Findings, Quarantine, Suspect
from ...runtime.forms.form_queue import FormCheck, FormQueue
from ...runtime.forms.messages import FormOutcome
from ...runtime.frontend import replay_policy
from ...runtime.frontend.core_client import CoreClient
from ...runtime.frontend.engine_view import EngineView
from ...runtime.frontend.ledger import Ledger
from ...runtime.frontend.ledger_entry import NOTHING, Send
from ...runtime.frontend.load_balancer import LeastLoaded
from ...runtime.frontend.replay_policy import ReplayPolicy
from ...runtime.launch.child import BecameReady
from ...runtime.launch.local_child import LocalChild
from ...transports.links.channel import PeerSilent, PeerUp
from ...transports.links.link import Deliver, Link
from ...transports.links.link_header import FrameKind
from ...transports.links.linked_channel import LinkedChannel
from ...transports.links.silence import SilenceWatch
from .journal_bugs import JOURNAL_ROWS, Broken, Row, nothing


@contextmanager
def replaced(owner: type | ModuleType, name: str, broken: Broken) -> Iterator[None]:
    """A method, or a function, is another one in this block, which gets the original first."""
    original = vars(owner)[name]

    def method(*args: Any, **kwargs: Any) -> Any:
        return broken(original, *args, **kwargs)

    setattr(owner, name, method)
    try:
        yield
    finally:
        setattr(owner, name, original)


def bugs_of(rows: Sequence[Row]) -> dict[str, Callable[[], AbstractContextManager[object]]]:
    """{name: plants the bug for a block}; a bug may have several rows."""

    @contextmanager
    def planted(name: str) -> Iterator[None]:
        with ExitStack() as stack:
            for row, owner, method, broken in rows:
                if row == name:
                    stack.enter_context(replaced(owner, method, broken))
            yield

    return {name: partial(planted, name) for name, *_ in rows}


# ---- ledger


def _forget_tokens(original: Broken, ledger: Ledger, entry: Any) -> Any:
    return attrs.evolve(original(ledger, entry), output_token_ids=[])


def _one_token_less(original: Broken, ledger: Ledger, entry: Any) -> Any:
    message = original(ledger, entry)
    return attrs.evolve(message, output_token_ids=message.output_token_ids[:-1])


def _first_credit(original: Broken, ledger: Ledger, entry: Any) -> Any:
    return attrs.evolve(original(ledger, entry), credit=entry.request.credit)


def _ask_from(change: int) -> Broken:
    def broken(original: Broken, ledger: Ledger, peer: Any) -> Any:
        message = original(ledger, peer)
        live = [attrs.evolve(each, next_index=each.next_index + change) for each in message.live]
        return attrs.evolve(message, live=live)

    return broken


def _ask_for_none(original: Broken, ledger: Ledger, peer: Any) -> Any:
    return attrs.evolve(original(ledger, peer), live=[])


def _send_nothing_again(original: Broken, *args: Any) -> list[Any]:
    return []


def _lose_finish(original: Broken, ledger: Ledger, peer: Any, outputs: Any, *now: float) -> Any:
    outputs = [
        attrs.evolve(each, finish_reason=None) if each.token_ids else each for each in outputs
    ]
    return original(ledger, peer, outputs, *now)


def _lose_grant(original: Broken, ledger: Ledger, request_id: str, credit: int) -> Send | None:
    entry = ledger.get(request_id)
    kept = None if entry is None else entry.credit
    send: Send | None = original(ledger, request_id, credit)
    if entry is not None:
        entry.credit = kept
    return send


# ---- frontend


def _count_the_dead(original: Broken, client: CoreClient, peer: Any, cause: str) -> Any:
    counts = client.statistics.get(peer)
    lost = original(client, peer, cause)
    if counts is not None:
        client.statistics[peer] = counts
    return lost


def _keep_the_gone(original: Broken, balancer: LeastLoaded, peers: Any) -> None:
    peers = list(peers)
    original(balancer, peers or balancer.engines)


def _up_without_resync(original: Broken, client: CoreClient, event: Any) -> Any:
    if isinstance(event, PeerUp) and event.generation > 1:
        client.engines.handle_up(event.peer)
        client._engines_changed()
        return NOTHING
    return original(client, event)


def _as_if_cut(original: Broken, view: EngineView, peer: Any) -> None:
    view.handle_down(peer)


def _forget_the_silent(original: Broken, client: CoreClient, event: Any) -> Any:
    if isinstance(event, PeerSilent):
        client.announce_waiting(client._forget(event.peer, "is silent"))
    return original(client, event)


# ---- replay


def _count_no_attempt(original: Broken, policy: ReplayPolicy, entry: Any, *cause: Any) -> None:
    entry.attempts = 1
    original(policy, entry, *cause)


def _send_anywhere(original: Broken, ready: Any, entry: Any) -> bool:
    return True


def _wait_no_longer(original: Broken, policy: ReplayPolicy, entry: Any) -> float:
    return float(entry.lost_at)


def _end_refused(original: Broken, policy: ReplayPolicy, entry: Any, *cause: Any) -> None:
    original(policy, entry, *cause)
    entry.attempts = policy.settings.replay_attempts_max


def _tell_no_one(original: Broken, client: CoreClient, *args: Any, exact: bool) -> None:
    original(client, *args, exact=True)


def _allow_all(original: Broken, policy: ReplayPolicy, entry: Any, now: float) -> Any:
    entry.request.inexact_ok = True
    return original(policy, entry, now)


# ---- engine


def _give_back_and_keep(original: Broken, core: EngineCore, frontend: Any, keys: Any) -> None:
    for key in keys:
        if core._store.find_attempt(frontend, key.request_id, key.attempt) is not None:
            core._put_end(core._endings.refuse(frontend, key, RequestRecalled()))


def _keep_unwanted(original: Broken, core: EngineCore, frontend: Any, live: Any) -> Any:
    named = {each.request_id for each in live}
    kept = [
        LiveRequest(each.request_id, each.attempt, each.output_count, each.credit)
        for each in core._store.live(frontend)
        if each.request_id not in named
    ]
    return original(core, frontend, [*live, *kept])


def _resend_all(original: Broken, core: EngineCore, frontend: Any, live: Any) -> Any:
    return original(core, frontend, [attrs.evolve(each, next_index=0) for each in live])


def _leak_block(original: Broken, manager: KVCacheManager, request: Any) -> None:
    if len(request.block_ids) > 1:
        request.block_ids.pop()
    original(manager, request)


def _ask_nothing_abort_nothing(original: Broken, core: EngineCore, frontend: Any, live: Any) -> Any:
    return original(core, frontend, live) if live else ([], [])


def _connect_once(original: Broken, engine: EngineProcess, membership: Any) -> None:
    if engine._membership_number < 0:
        original(engine, membership)


def _head_first(original: Broken, names: BlockNames) -> None:
    names.memory[:] = names._head + bytes(len(names.memory) - len(names._head))


# ---- blame


def _blame_the_killed(original: Broken, *args: Any, is_own_fault: bool) -> None:
    original(*args, is_own_fault=True)


def _blame_each_alone(
    original: Broken, quarantine: Quarantine, positions: dict[bytes, int], *args: Any
) -> Findings:
    findings = [original(quarantine, dict([each]), *args) for each in positions.items()]
    return Findings([c for each in findings for c in each.refused], frozenset())


def _group_by_number(
    original: Broken, quarantine: Quarantine, positions: dict[bytes, int], life: int
) -> dict[bytes, list[int]]:
    counts = Counter(content for death in quarantine._deaths for content in death.positions)
    fresh = positions.keys() - quarantine.refused.keys()
    return {content: [life] for content in sorted(fresh) if counts[content] >= 2}


def _refuse_none(
    original: Broken, quarantine: Quarantine, positions: dict[bytes, int], *args: Any
) -> Findings:
    found: Findings = original(quarantine, positions, *args)
    for content in found.refused:
        until = quarantine.refused.pop(content)
        quarantine.suspects[content] = Suspect(positions[content], until=until)
    return Findings([], found.explained)


def _pass_none(original: Broken, *args: Any) -> bool:
    return False


def _let_suspects_join(original: Broken, view: EngineView, request: Any, now_s: float) -> None:
    original(view, request, now_s)
    request.solo_tokens = 0


def _count_more(original: Broken, *args: Any) -> None:
    account = args[2]
    before = account.stopped_s
    original(*args)
    account.stopped_s += 20 * max(0.0, account.stopped_s - before)


# ---- links


def _deliver_twice(original: Broken, link: Link, header: Any, now: float) -> Any:
    is_last = header.sequence == link._received
    decisions = original(link, header, now)
    return (*decisions, Deliver()) if is_last else decisions


def _miss_no_gap(original: Broken, link: Link, header: Any, now: float) -> Any:
    link._received = max(link._received, header.sequence - 1)
    return original(link, header, now)


def _take_old_generations(original: Broken, link: Link, header: Any, now: float) -> Any:
    if header.kind is FrameKind.DATA and header.generation < link.generation:
        header = attrs.evolve(header, generation=link.generation)
    return original(link, header, now)


# ---- root


def _same_epoch(original: Broken, fleet: Any, rank: int, *args: Any) -> Any:
    return original(fleet, rank, rank + 1, args[-1])


# ---- forms


def _link_no_new_one(original: Broken, fleet: FormFleet, rank: int, event: Any) -> None:
    if not isinstance(event, BecameReady):
        original(fleet, rank, event)


def _lose_forms(original: Broken, queue: FormQueue) -> list[FormCheck]:
    return []


def _lose_crashes(original: Broken, queue: FormQueue, answer: Any, now: float) -> Any:
    if answer.outcome is FormOutcome.CRASHED:
        answer = attrs.evolve(answer, outcome=FormOutcome.LOST)
    return original(queue, answer, now)


_ROWS: tuple[Row, ...] = (
    ("a replay forgets what was delivered", Ledger, "_message", _forget_tokens),
    ("a replay is one token behind", Ledger, "_message", _one_token_less),
    ("a replay has the first credit", Ledger, "_message", _first_credit),
    ("RESYNC asks for one too far", Ledger, "handle_peer_up", _ask_from(+1)),
    ("RESYNC asks for one again", Ledger, "handle_peer_up", _ask_from(-1)),
    ("RESYNC wants nothing", Ledger, "handle_peer_up", _ask_for_none),
    ("unknown requests are not sent again", Ledger, "handle_resync_reply", _send_nothing_again),
    ("a finish with a token is lost", Ledger, "_accept_outputs", _lose_finish),
    ("a replay knows no grant", Ledger, "handle_grant", _lose_grant),
    ("a dead engine's counts stay", CoreClient, "_forget", _count_the_dead),
    ("a dead engine stays if it was the last", LeastLoaded, "set_engines", _keep_the_gone),
    ("a link begins without RESYNC", CoreClient, "handle_event", _up_without_resync),
    ("silence is not noticed", SilenceWatch, "begin", nothing),
    ("streams of a silent engine wait for it", EngineView, "handle_silent", _as_if_cut),
    ("a silent engine is forgotten", CoreClient, "handle_event", _forget_the_silent),
    ("who is heard again gets nothing", EngineView, "handle_heard", nothing),
    ("a stream that is left is not aborted", CoreClient, "abort", nothing),
    ("credit is never granted", CoreClient, "grant", nothing),
    ("attempts have no bound", ReplayPolicy, "handle_lost", _count_no_attempt),
    ("a replay goes to other numerics", replay_policy, "is_exact", _send_anywhere),
    ("other tokens come without an event", CoreClient, "_replay", _tell_no_one),
    ("other tokens come, and were not asked for", ReplayPolicy, "_decide", _allow_all),
    ("a stream waits for no engine", ReplayPolicy, "_late_at", _wait_no_longer),
    ("a refusal for draining ends a stream", ReplayPolicy, "handle_refused", _end_refused),
    ("what leaves a queue is computed there, too", EngineCore, "recall", _give_back_and_keep),
    ("an engine keeps what is not wanted", EngineCore, "resync", _keep_unwanted),
    ("an engine sends all again", EngineCore, "resync", _resend_all),
    ("a block is leaked", KVCacheManager, "free", _leak_block),
    ("blocks outlive their worker", EngineCore, "forget_blocks", nothing),
    ("a block keeps its name", BlockNames, "remove", nothing),
    ("names of another memory are believed", BlockNames, "clear", nothing),
    ("a head is true before its names are", BlockNames, "clear", _head_first),
    ("a step begins before it is written down", step_loop, "_write_batch", nothing),
    ("a step that is over is in the table", BatchTable, "end_step", nothing),
    ("a lost step stays in the table", BatchTable, "clear", nothing),
    ("who is killed has suspects", LocalChild, "handle_failing", _blame_the_killed),
    ("each of many is blamed alone", Quarantine, "handle_death", _blame_each_alone),
    ("deaths count wherever they were", Quarantine, "_group", _group_by_number),
    ("poison is never refused", Quarantine, "handle_death", _refuse_none),
    ("what is refused is computed", EngineView, "judge", nothing),
    ("suspects run with others", EngineView, "judge", _let_suspects_join),
    ("who has passed is a suspect still", Quarantine, "handle_passed", _pass_none),
    ("a stop is taken for a hang at once", HangWatch, "_count", _count_more),
    ("a hang is not ended", LocalChild, "_handle_hang", nothing),
    ("a dead frontend's requests run on", EngineCore, "resync", _ask_nothing_abort_nothing),
    ("a new frontend is not connected", EngineProcess, "_apply_membership", _connect_once),
    ("a duplicate is delivered", Link, "_handle_data", _deliver_twice),
    ("a gap is not missed", Link, "_handle_data", _miss_no_gap),
    ("an old generation counts", Link, "handle_header", _take_old_generations),
    ("a lost tail is never asked after", Link, "_arm_probe", nothing),
    ("a forgotten peer is not fenced, nor forgotten", LinkedChannel, "forget", nothing),
    ("a successor has an epoch again", EngineFleet, "handle_starting", _same_epoch),
    ("a successor has a term again", FrontendFleet, "handle_starting", _same_epoch),
    ("a form is lost with its form process", FormQueue, "handle_gone", _lose_forms),
    ("a check that crashes is checked again", FormQueue, "handle_checked", _lose_crashes),
    ("a new form process has no link", FormFleet, "handle", _link_no_new_one),
)
BUGS = bugs_of((*_ROWS, *JOURNAL_ROWS))
