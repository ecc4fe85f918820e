"""Counters of one frontend, edge and runtime together, as named numbers that can be summed.

What is counted is said once, by the fields of `ApiCounters` and `FrontendStatistics`. Each number's
name is the way to it through the fields, so that the sum over all frontends is such an object, too.
Sums of times are whole nanoseconds.

Sans-IO: plain data. `totals` has the frontends' shared memory.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from ..nurseries.processes.counter_slot import COUNTER, GAUGE, SLOT_BYTES, Name, Numbers
from ..runtime.frontend.health import FrontendStatistics, gauge

NS_PER_S = 1e9


@attrs.define(eq=False)
class ApiCounters:
    """Counts of the edge since the start; `_active` ones are what there is now."""

    connections_active: int = gauge()
    connections: int = 0
    connections_refused: int = 0
    connections_failed: int = 0
    # Begun by a life of this frontend before, and gone on with; or cut, as that could not be.
    connections_taken_over: int = 0
    connections_lost: int = 0
    sockets_active: int = gauge()
    sockets: int = 0
    deltas_merged: int = 0
    # Traces that a collector took, and that were lost.
    spans: int = 0
    spans_dropped: int = 0
    # {(method, route, status): answers}; routes are those of the table, so it is bounded.
    answers: Counter[tuple[str, str, int]] = attrs.field(factory=Counter)


@attrs.frozen(kw_only=True)
class FrontendCounts:
    """Counts of one frontend, or their sum over several."""

    edge: ApiCounters = attrs.field(factory=ApiCounters)
    runtime: FrontendStatistics = attrs.field(factory=FrontendStatistics)


def numbers_of(counts: FrontendCounts) -> dict[Name, int]:
    """Every count, by name."""
    return dict(_walk(counts, (COUNTER,)))


def counts_of(numbers: Numbers) -> FrontendCounts:
    """The counts with these numbers; 0 where there is none."""
    counts = _rebuild(FrontendCounts(), (COUNTER,), numbers)
    assert isinstance(counts, FrontendCounts)
    return counts


def _walk(value: Any, name: Name) -> Iterator[tuple[Name, int]]:
    match value:
        case int():
            yield name, value
        case float():
            yield name, round(value * NS_PER_S)
        case Mapping():
            for key, count in value.items():
                yield (*name, *(key if isinstance(key, tuple) else (key,))), count
        case list():
            for place, count in enumerate(value):
                yield (*name, place), count
        case tuple():
            pass  # the bounds of buckets are a part of the layout
        case _:
            for way, inner in _fields(value, name).values():
                yield from _walk(inner, way)


def _rebuild(value: Any, name: Name, numbers: Numbers) -> Any:
    """Copy of `value` with these numbers."""
    kind: Any = type(value)
    match value:
        case int():
            return numbers.get(name, 0)
        case float():
            return numbers.get(name, 0) / NS_PER_S
        case Mapping():
            size = len(name)
            keys = {way[size:]: count for way, count in numbers.items() if way[:size] == name}
            return kind({key if len(key) > 1 else key[0]: count for key, count in keys.items()})
        case list():
            return [numbers.get((*name, place), 0) for place in range(len(value))]
        case tuple():
            return value
        case _:
            fields = _fields(value, name).items()
            return kind(**{field: _rebuild(each, way, numbers) for field, (way, each) in fields})


def _fields(value: Any, name: Name) -> dict[str, tuple[Name, Any]]:
    """{field of an attrs object: the way to it, its value}; gauges have other names throughout."""
    inner = attrs.asdict(value, recurse=False)
    ways: dict[str, tuple[Name, Any]] = {}
    for field in attrs.fields(type(value)):
        first = GAUGE if field.metadata.get(GAUGE) else name[0]
        ways[field.name] = (first, *name[1:], field.name), inner[field.name]
    return ways


def _layout() -> int:
    """Hash of the classes, their buckets and the slot: any change of them makes another number."""
    empty = FrontendCounts()
    what = f"{SLOT_BYTES} {empty!r} {list(_walk(empty, (COUNTER,)))}"
    return int.from_bytes(hashlib.blake2b(what.encode(), digest_size=8).digest())


LAYOUT = _layout()
