"""Estate of a place: what outlives its processes, kept by the root and handed to each next life.

Journals, slots of connections, counters and an engine's memory are estates. A supervisor opens
those of its fleet around all processes, passes their descriptors with INIT, and has them handle
what happens in each place before the fleet does.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import attrs

from ...engine.block_names import drop_names
from ...engine.errors import BootRefused
from ...engine.place_memory import MemoryOfPlaces, open_memory_of_places
from ...nurseries.processes.counter_page import CounterMemory, open_counter_memory
from ..launch.child import GivenUp, Gone, PlaceEvent, Removed, Suspected


class Estate(Protocol):
    """Kind of memory that is left behind. Called in the loop, must not block."""

    def open(self, count: int) -> AbstractContextManager[object]:
        """Open it for ranks 0 to `count` - 1, around all their processes; leaves nothing.

        Raises `OSError` where there is no memory or descriptor for it.
        """

    def handle_starting(self, rank: int, epoch: int) -> Mapping[str, int]:
        """Descriptors for the life that begins, by name; they stay the estate's.

        Raises `BootRefused` if they cannot be made.
        """

    def handle(self, rank: int, event: PlaceEvent) -> None:
        """Something happened in the place of this rank."""


def not_made(what: str, who: str, error: OSError) -> BootRefused:
    """The refusal of a life for which this cannot be made."""
    return BootRefused(who, f"{what} of {who} cannot be made: {error.strerror or error}")


@attrs.define(eq=False)
class EngineEstate:
    """Memory of all engines of one run, by rank; the root's side of `engine.place_memory`.

    What is cached, and its names, are dropped where a step may have written wild, and given back to
    the system where no engine is to come.
    """

    _places: MemoryOfPlaces = attrs.field(init=False)

    @contextmanager
    def open(self, count: int) -> Iterator[None]:
        """Make the memory, empty. Raises `OSError`."""
        with open_memory_of_places(count) as self._places:
            yield

    def handle_starting(self, rank: int, epoch: int) -> Mapping[str, int]:
        """Memory that is passed, in the order of its fields; made now for a place that is new."""
        return attrs.asdict(self._places.add(rank))

    def handle(self, rank: int, event: PlaceEvent) -> None:
        """The next engine finds nothing that a step may have written wild."""
        match event:
            case Suspected():
                drop_names(self._places[rank].names)
            case GivenUp():
                self._places.drop_cache(rank)  # if it could be made
            case Removed():
                self._places.remove(rank)


@attrs.define(eq=False)
class FrontendCounters:
    """Page with a slot for each frontend; the root's side of `counter_page`."""

    _memory: CounterMemory = attrs.field(init=False)

    @contextmanager
    def open(self, count: int) -> Iterator[None]:
        """Make the page. Raises `OSError`."""
        with open_counter_memory(count) as self._memory:
            yield

    def handle_starting(self, rank: int, epoch: int) -> Mapping[str, int]:
        """The page, which all frontends share."""
        return {"counters": self._memory.fd}

    def handle(self, rank: int, event: PlaceEvent) -> None:
        """A process that is gone has no gauges any more."""
        if isinstance(event, Gone):
            self._memory.retire(rank)
