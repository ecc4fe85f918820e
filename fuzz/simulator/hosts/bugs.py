"""Bugs planted into what hosts and their head decide, and the plans that find each.

As those of `simulator.bugs`: what they do to a server is what they would do in production.
"""

from typing import Any

import attrs

from ....runtime.fleet.membership import EngineDirectory
from ....runtime.frontend.engine_view import EngineView
from ....runtime.frontend.ledger import Ledger
from ....runtime.hosts.host_directory import EPOCHS_OF_BLOCK, HostDirectory
from ....runtime.hosts.host_messages import HeadBeat
from ....runtime.hosts.lease import HostLease, HostState, HostWatch
from ..bugs import bugs_of
from ..journal_bugs import Broken, Row, nothing
from ..plan import Event, Fault, FaultKind, Request
from .plan import HOSTS


def _count_from_receiving(original: Broken, lease: HostLease, beat: HeadBeat, now: float) -> None:
    before = lease._echoed
    original(lease, beat, now)
    if lease._echoed > before:
        lease.ends_s = now + lease.settings.lease_s


def _lose_the_silent(original: Broken, watch: HostWatch, state: HostState) -> Any:
    return original(watch, HostState.LOST if state is HostState.SILENT else state)


def _believe_any_end(original: Broken, watch: HostWatch, now: float) -> Any:
    watch._reopen_s = now + watch.settings.reopen_s


def _count_from_the_answer(original: Broken, watch: HostWatch, now: float) -> None:
    return None


def _same_block(original: Broken, directory: HostDirectory) -> range:
    return range(1000, 1000 + EPOCHS_OF_BLOCK)


def _first_ranks(original: Broken, directory: HostDirectory, count: int, taken: Any) -> range:
    return range(len(taken), len(taken) + count)


def _by_name_alone(original: Broken, directory: HostDirectory, host: Any) -> Any:
    return directory.hosts.get(host.name)


def _list_the_lost(original: Broken, directory: EngineDirectory, host: str, *listed: Any) -> Any:
    return original(directory, host, *listed) if listed[0] else directory.snapshot()


def _silent_for_ever(original: Broken, directory: HostDirectory, host: Any, state: Any) -> Any:
    return state is not HostState.UP and original(directory, host, state)


def _silent_for_frontends(original: Broken, view: EngineView, membership: Any) -> Any:
    before = view._on_silent_hosts
    gone = original(view, membership)
    view._on_silent_hosts = before | view._on_silent_hosts
    return gone


_ROWS: tuple[Row, ...] = (
    (
        "a lease counts from the receiving of its echo",
        HostLease,
        "handle_beat",
        _count_from_receiving,
    ),
    ("a silent host is lost", HostWatch, "_move", _lose_the_silent),
    ("any end of a connection is a host's end", HostWatch, "handle_down", _believe_any_end),
    (
        "who asks to join again is watched from the first time",
        HostWatch,
        "handle_join",
        _count_from_the_answer,
    ),
    ("a block of epochs is given again", HostDirectory, "_block_of_epochs", _same_block),
    ("a rank is given twice", HostDirectory, "_free_ranks", _first_ranks),
    ("a snapshot of an old incarnation counts", HostDirectory, "_known", _by_name_alone),
    ("engines of a lost host stay listed", EngineDirectory, "handle_host", _list_the_lost),
    ("a host that is heard again stays silent", HostDirectory, "handle_state", _silent_for_ever),
    (
        "a host that is heard again is silent for frontends",
        EngineView,
        "handle_membership",
        _silent_for_frontends,
    ),
    ("what has moved from a silent engine is not aborted", Ledger, "handle_moved", nothing),
)
HOST_BUGS = bugs_of(_ROWS)
HOST_BREAKS: dict[str, str] = {
    "a lease counts from the receiving of its echo": "a host computes on when it is given up",
    "a silent host is lost": "a short cut ends every engine of a machine",
    "any end of a connection is a host's end": "a cut of one way ends every engine of a machine",
    "who asks to join again is watched from the first time": (
        "a host whose answer was lost is given up when it has just begun"
    ),
    "a block of epochs is given again": "two lives of an engine cannot be distinguished",
    "a rank is given twice": "two machines speak for one engine",
    "a snapshot of an old incarnation counts": "engines are listed that are no more",
    "engines of a lost host stay listed": "streams wait for a machine that is off",
    "a host that is heard again stays silent": "a machine that was only slow is never used again",
    "a host that is heard again is silent for frontends": (
        "a machine that was only slow is never used again"
    ),
    "what has moved from a silent engine is not aborted": "an engine computes what another one has",
}


def _streams(**fields: object) -> list[Event]:
    plain = {
        "at_s": 0.0,
        "frontend": 0,
        "prompt": [9, 8],
        "max_tokens": 40,
        "pause_s": 0.1,
        **fields,
    }
    return [
        Request(name=f"request-{number}", seed=number, **plain)  # type: ignore[arg-type]
        for number in range(6)
    ]


def _fault(kind: FaultKind, for_s: float = 0.0, **fields: Any) -> Fault:
    return Fault(kind=kind, at_s=0.0, for_s=for_s, **{"tokens": 20, **fields})


# A fault of a way that nobody uses: faults are healed when all are over.
_WHILE = _fault(FaultKind.CUT, 9.0, frontend=7, engine=7)
HOST_CHECKS: dict[str, str] = {
    "lease: who is given up computes no more": r"computes, and is given up",
    "hosts: nothing is listed of who is lost": r"is lost, and its engines are listed",
    "hosts: what they list is theirs": r" lists (a rank twice|engine|epoch)",
    "hosts: all are back in bounded time": r"host-\d+ is not there",
}
# {planted bug: the plan that finds it}; without the bug every plan holds.
HOST_PLANS: dict[str, list[Event]] = {
    # What it hears last is late by more than the head's margin.
    "a lease counts from the receiving of its echo": [
        attrs.evolve(HOSTS, host_delay_s=0.5),
        *_streams(),
        _fault(FaultKind.MUTE_HOST, 8.0, tokens=60),
    ],
    "a silent host is lost": [HOSTS, *_streams(), _fault(FaultKind.MUTE_HOST, 2.0)],
    "any end of a connection is a host's end": [
        HOSTS,
        *_streams(),
        _fault(FaultKind.DEAFEN_HOST, 2.5),
    ],
    # Killed, it asks to join, and hears nothing for a while.
    "who asks to join again is watched from the first time": [
        HOSTS,
        *_streams(),
        _fault(FaultKind.KILL_HOST),
        _fault(FaultKind.DEAFEN_HOST, 3.1, tokens=25),
        _WHILE,
    ],
    "a block of epochs is given again": [
        HOSTS,
        *_streams(),
        _fault(FaultKind.KILL_HOST),
        _fault(FaultKind.KILL_HOST, tokens=60),
        _WHILE,
    ],
    "a rank is given twice": [HOSTS, *_streams()],
    # What it says of the end of an engine is under way when it is killed.
    "a snapshot of an old incarnation counts": [
        attrs.evolve(HOSTS, host_delay_s=0.8),
        *_streams(),
        _fault(FaultKind.KILL_ENGINE, engine=1),
        _fault(FaultKind.KILL_HOST, tokens=22),
        _WHILE,
    ],
    "engines of a lost host stay listed": [
        HOSTS,
        *_streams(),
        _fault(FaultKind.HOST_OFF, 9.0),
        _WHILE,
    ],
    "a host that is heard again stays silent": [
        HOSTS,
        *_streams(),
        _fault(FaultKind.MUTE_HOST, 2.0),
    ],
    "a host that is heard again is silent for frontends": [
        HOSTS,
        *_streams(),
        _fault(FaultKind.MUTE_HOST, 2.0),
    ],
    "what has moved from a silent engine is not aborted": [
        HOSTS,
        *_streams(),
        _fault(FaultKind.MUTE_HOST, 2.0),
    ],
}
