"""Bugs planted into journals, their adoption and their owners, as in `bugs`: each one rule broken.

What they cost is seen when a frontend dies: by a client that comes back to a stream, or by what its
clients had of it and the next life has not.
"""

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import attrs

from ...engine.core.homes import Homes
from ...engine.messages import RequestOutput, StepOutputs
from ...engine.process.main import EngineProcess
from ...nurseries.tasks.supervision_policy import SupervisionPolicy
from ...runtime.continuity import frontend_journals
from ...runtime.continuity.frontend_journals import FrontendJournals
from ...runtime.frontend import adoption
from ...runtime.frontend.admission import Ticket, ignore_load
from ...runtime.frontend.core_client import CoreClient
from ...runtime.frontend.engine_view import EngineView
from ...runtime.frontend.ledger import Ledger
from ...runtime.journal.journal import Journal
from ...runtime.journal.records import BEGIN_AT, Snapshot
from ...runtime.journal.stream import JournalChoice, JournalStream
from ...runtime.journal.writer import JournalWriter
from ...transports.links.channel import Peer
from .network import CODECS

# The original method or function, then what it was called with.
Broken = Callable[..., Any]
# Name of the bug, whose method or function is replaced, and by what.
Row = tuple[str, type | ModuleType, str, Broken]


def nothing(original: Broken, *args: Any, **kwargs: Any) -> None:
    """Leave it out."""


def one_late() -> Broken:
    """Do each when the next is due."""
    waiting: WeakKeyDictionary[object, tuple[Any, ...]] = WeakKeyDictionary()

    def do_the_last(original: Broken, owner: object, *args: Any) -> None:
        last, waiting[owner] = waiting.get(owner), args
        if last is not None:
            original(owner, *last)

    return do_the_last


# ---- what is written down


def _lose_in_snapshots(**fields: object) -> Broken:
    def broken(original: Broken, choice: JournalChoice) -> Any:
        return attrs.evolve(original(choice), **fields)

    return broken


def _swap_choices(original: Broken, stream: JournalStream) -> Any:
    said = original(stream)
    return attrs.evolve(said, choices=said.choices[::-1])


def _forget_in_memory(original: Broken, journal: Journal, name: str) -> None:
    if name in journal._streams:
        journal._drop(journal._streams[name])


def _give_back_first(original: Broken, writer: JournalWriter) -> None:
    begin, freed = writer._oldest(), writer._floor(writer.begin)
    if writer._floor(begin) != freed:
        writer.memory.free(freed, writer._floor(begin))
        writer.memory.publish(BEGIN_AT, begin)
        writer.begin = begin


def _move_base_first(original: Broken, writer: JournalWriter, record: Any) -> None:
    if isinstance(record, Snapshot):
        name = record.admission.name
        writer._bases[name] = attrs.evolve(writer._bases[name], position=writer.end)
        writer._bases.move_to_end(name)
        writer._free()
    original(writer, record)


def _end_alone(output: RequestOutput) -> RequestOutput:
    index = output.first_index + len(output.token_ids)
    return attrs.evolve(output, token_ids=[], first_index=index, logprobs=None)


def _split_ends() -> Broken:
    """Tokens now, the end that came with the last of them with the next message."""
    ends: WeakKeyDictionary[object, tuple[Any, ...]] = WeakKeyDictionary()

    def broken(original: Broken, journal: Journal, peer: Any, frame: Any, *args: Any) -> None:
        if (end := ends.pop(journal, None)) is not None:
            original(journal, *end)
        message = CODECS[1].decode([frame])
        if isinstance(message, StepOutputs) and any(each.finish_reason for each in message.outputs):
            tokens = [attrs.evolve(each, finish_reason=None) for each in message.outputs]
            frame = CODECS[1].encode(attrs.evolve(message, outputs=tokens))[0]
            alone = StepOutputs(message.step, [_end_alone(each) for each in message.outputs])
            # Nor is it known before: else the record of the stream's end would have it.
            ends[journal] = (peer, CODECS[1].encode(alone)[0], *args)
            args = ()
        original(journal, peer, frame, *args)

    return broken


# ---- what is adopted


def _token_behind(original: Broken, frontend: Any, choice: JournalChoice, ticket: Any) -> Any:
    if not choice.is_over:
        choice.token_ids = choice.token_ids[:-1]
    return original(frontend, choice, ticket)


def _token_ahead(original: Broken, frontend: Any, choice: JournalChoice, ticket: Any) -> Any:
    if not choice.is_over:
        choice.token_ids = choice.token_ids + choice.token_ids[-1:]
    return original(frontend, choice, ticket)


def _own_list(original: Broken, frontend: Any, choice: JournalChoice, ticket: Any) -> Any:
    flow = original(frontend, choice, ticket)
    choice.token_ids = list(flow.token_ids)
    return flow


def _forget_stop_strings(original: Broken, choice: JournalChoice, flow: Any) -> None:
    processor = flow.processor
    stops = None if processor._stops is None else attrs.evolve(processor._stops)
    original(choice, flow)
    if stops is not None and not choice.is_over:
        processor._stops = stops


def _reverse(
    original: Broken, ledger: Ledger, request: Any, peer: Any, *args: Any, **also: Any
) -> Any:
    entry = original(ledger, request, peer, *args, **also)
    if peer is not None:
        placed = ledger.placed._of
        placed[peer] = dict(reversed(placed[peer].items()))
    return entry


def _forget_numerics(original: Broken, *args: Any, ready: Any) -> Any:
    return original(*args, ready=SimpleNamespace(numerics_id="", bitwise=True))


def _yes(original: Broken, *args: Any) -> bool:
    return True


def _none_is_gone(original: Broken, *args: Any) -> Any:
    return {}


def _resync_before(original: Broken, ledger: Ledger, peer: Any) -> Any:
    message = original(ledger, peer)
    live = [each for each in message.live if ledger._entries[each.request_id].state.is_measured]
    return attrs.evolve(message, live=live)


# ---- terms


def _begin_at_zero(original: Broken, ledger: Ledger) -> None:
    ledger._attempts = 0


def _own_any(original: Broken, homes: Homes, home: int, term: int) -> Any:
    return homes._homes.get(home)


def _know_for_ever(original: Broken, engine: EngineProcess, membership: Any) -> None:
    engine._known &= {Peer("frontend", each.rank, each.term) for each in membership.frontends}
    original(engine, membership)


# ---- root


def _another_rank(original: Broken, journals: FrontendJournals, rank: int, epoch: int) -> Any:
    return {**original(journals, rank, epoch), "journal": next(iter(journals._fds.values()))}


def _new_journal(original: Broken, journals: FrontendJournals, rank: int, epoch: int) -> Any:
    before = journals._fds.pop(rank, None)
    passed = original(journals, rank, epoch)
    if before is not None:
        journals._fds[rank - 100] = before  # closed at the end
    return passed


def _give_up(original: Broken, policy: SupervisionPolicy) -> None:
    policy.gives_up_served = True
    original(policy)


# A name may have several.
def _report_nothing(original: Broken, ticket: Ticket, *args: Any) -> Any:
    admission = ticket._admission
    on_load, admission.on_load = admission.on_load, ignore_load
    original(ticket, *args)
    admission.on_load = on_load


JOURNAL_ROWS: tuple[Row, ...] = (
    ("tokens are offered before they are written down", Journal, "append_message", one_late()),
    ("an end is written down after its token", Journal, "append_message", _split_ends()),
    ("a placement is written down too late", Journal, "place", one_late()),
    ("a stream is admitted before it is written down", Journal, "admit", one_late()),
    ("an end is not written down", Journal, "end", nothing),
    ("what is forgotten is kept", Journal, "forget", _forget_in_memory),
    ("a client's credit is not written down", CoreClient, "note_granted", nothing),
    ("a snapshot has no logprobs", JournalChoice, "snapshot", _lose_in_snapshots(logprobs=[])),
    ("a snapshot has no credit", JournalChoice, "snapshot", _lose_in_snapshots(client_credit=0)),
    ("a snapshot has no tokens", JournalChoice, "snapshot", _lose_in_snapshots(token_ids=[])),
    ("a snapshot mixes choices up", JournalStream, "snapshot", _swap_choices),
    ("a journal is freed before that is known", JournalWriter, "_free", _give_back_first),
    ("a journal is freed before a snapshot is there", JournalWriter, "append", _move_base_first),
    ("deaths of adopters are not counted", JournalWriter, "_note_death", nothing),
    ("a kill counts as a stream's", frontend_journals, "forget_rebuilding", nothing),
    ("an adopted stream is a token behind", adoption, "_flow_of", _token_behind),
    ("an adopted stream is a token ahead", adoption, "_flow_of", _token_ahead),
    ("an adopted stream's journal has its own list", adoption, "_flow_of", _own_list),
    ("a stop string's beginning is not adopted", adoption, "_fill", _forget_stop_strings),
    ("adopted streams are in another order", Ledger, "handle_adopted", _reverse),
    ("an adopted stream has no numerics", Ledger, "handle_adopted", _forget_numerics),
    ("what cannot be resumed goes on", adoption, "is_over", _yes),
    ("adopters do not know who has gone", EngineView, "missing", _none_is_gone),
    ("RESYNC before the ledger is rebuilt", Ledger, "handle_peer_up", _resync_before),
    ("a term has the attempts of another", Ledger, "__attrs_post_init__", _begin_at_zero),
    ("the dead may speak", Homes, "_owned", _own_any),
    ("the dead may speak", EngineProcess, "_apply_membership", _know_for_ever),
    ("a journal is another rank's", FrontendJournals, "handle_starting", _another_rank),
    ("each life has a journal of its own", FrontendJournals, "handle_starting", _new_journal),
    ("a frontend that has served is given up", SupervisionPolicy, "__attrs_post_init__", _give_up),
    ("a stream's end is not reported", Ticket, "__exit__", _report_nothing),
)
