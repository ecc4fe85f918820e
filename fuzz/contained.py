"""Contained fuzzing: a campaign in a bounded child, whose death names the event that it died of.

Parsers in native code may crash, never return, or fill memory, and then no Python runs that could
say at what. So the child notes on a page which event is under way, the kernel ends it at an event
that takes too much processor time or memory, and its parent, which does nothing but wait, reads
the page.
"""

import mmap
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from ..nurseries.processes.boot import request_death_signal
from .fuzzer import SHOWN_CHARACTERS_MAX, AnyFuzzer, draw_round

# Limit beside what is mapped at the fork; libraries and models take a quarter.
MEMORY_BYTES_MAX = 2 * 2**30
# Round, and place of the event in it.
_PLACE = struct.Struct("qq")
# Before the first event.
_NOWHERE = -1


@attrs.frozen
class Died(Exception):
    """The process died of an event; `cause` is the signal's name."""

    fuzzer: str
    seed: int
    round_number: int
    place: int
    event: object
    cause: str

    def __str__(self) -> str:
        return (
            f"{self.fuzzer}, seed {self.seed}, round {self.round_number}: its process died by"
            f" {self.cause} of event {self.place}:\n  {repr(self.event)[:SHOWN_CHARACTERS_MAX]}\n"
            f"again: python -m triolet.fuzz {self.fuzzer} --seed {self.seed}"
            f" --round {self.round_number}"
        )


@attrs.define(eq=False)
class EventWatch:
    """Notes each event before it begins, and bounds its processor time; see `Fuzzer.watch`."""

    event_s_max: float
    page: mmap.mmap

    def begin(self, number: int, events: Sequence[Any]) -> Sequence[Any]:
        """The events of a round, each noted when it is taken."""
        return _Watched(events, self, number)

    def note(self, number: int, place: int) -> None:
        """This event begins. The signal when its time is over has no handler, so it kills."""
        _PLACE.pack_into(self.page, 0, number, place)
        signal.setitimer(signal.ITIMER_PROF, self.event_s_max)

    def end(self) -> None:
        """The round is over."""
        signal.setitimer(signal.ITIMER_PROF, 0)


class _Watched(list[Any]):
    """A round's events."""

    def __init__(self, events: Sequence[Any], watch: EventWatch, number: int) -> None:
        super().__init__(events)
        self._watch, self._number = watch, number

    def __iter__(self) -> Iterator[Any]:
        for place, event in enumerate(super().__iter__()):
            self._watch.note(self._number, place)
            yield event


def go_on_in_child(fuzzer: AnyFuzzer, seed: int) -> AnyFuzzer:
    """Fork: return in the child, with a fuzzer that is watched; the parent exits as the child does.

    To be called before a thread is started that may hold a lock: those that a numeric library has
    wait for work. Raises `Died` in the parent if a signal ended the child.
    """
    assert fuzzer.event_s_max is not None
    page = mmap.mmap(-1, _PLACE.size)
    _PLACE.pack_into(page, 0, _NOWHERE, _NOWHERE)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        request_death_signal()
        _bound()
        return attrs.evolve(fuzzer, watch=EventWatch(fuzzer.event_s_max, page))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code >= 0:
        sys.exit(code)
    number, place = _PLACE.unpack_from(page)
    event = None if number == _NOWHERE else draw_round(fuzzer, seed, number)[place]
    raise Died(fuzzer.name, seed, number, place, event, signal.Signals(-code).name)


def _bound() -> None:
    with open("/proc/self/statm", encoding="ascii") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY_BYTES_MAX,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
