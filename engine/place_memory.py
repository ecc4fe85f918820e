"""Shared memory of an engine's place: what its workers fill outlives them, and its successor finds.

Three memfds, passed beside INIT from the root to an engine, and from it to its workers: the weights
of the run, which all its engines share, the keys and values of one engine's blocks, and the names
of those blocks. Here is which of them is which; who fills them, and when they are true, is said in
`worker.native.executor` and `block_names`.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs


@attrs.frozen
class PlaceMemory:
    """Descriptors; fields are in the order in which they are passed."""

    weights: int
    cache: int
    names: int

    @classmethod
    def of(cls, fds: Sequence[int]) -> "PlaceMemory | None":
        """Memory of descriptors that were passed; None where there were none."""
        return cls(*fds) if fds else None

    @property
    def fds(self) -> tuple[int, int, int]:
        """To be passed on."""
        return attrs.astuple(self)


@attrs.define(eq=False)
class MemoryOfPlaces:
    """Memory of the engines of one run, by rank; all have the same weights."""

    weights: int
    _places: dict[int, PlaceMemory] = attrs.field(factory=dict, init=False)

    def __getitem__(self, rank: int) -> PlaceMemory:
        return self._places[rank]

    def __iter__(self) -> Iterator[PlaceMemory]:
        return iter(self._places.values())

    def add(self, rank: int) -> PlaceMemory:
        """The memory of this place, made if there is none. Raises `OSError`."""
        if rank not in self._places:
            cache = _create("cache")
            try:
                self._places[rank] = PlaceMemory(self.weights, cache, _create("names"))
            except BaseException:
                os.close(cache)
                raise
        return self._places[rank]

    def drop_cache(self, rank: int) -> None:
        """Give back what is cached for this place, also where a process has it mapped."""
        if (memory := self._places.get(rank)) is not None:
            os.ftruncate(memory.cache, 0)

    def remove(self, rank: int) -> None:
        """Give the memory of this place back, if there is any."""
        if (memory := self._places.pop(rank, None)) is not None:
            os.close(memory.cache)
            os.close(memory.names)

    def close(self) -> None:
        """Give all of it back."""
        for rank in list(self._places):
            self.remove(rank)
        os.close(self.weights)


@contextmanager
def open_memory_of_places(count: int = 1) -> Iterator[MemoryOfPlaces]:
    """Empty memory of as many engines of one run. Raises `OSError`."""
    places = MemoryOfPlaces(_create("weights"))
    try:
        for rank in range(count):
            places.add(rank)
        yield places
    finally:
        places.close()


def _create(name: str) -> int:
    # People see the name in `/proc/PID/smaps`.
    return os.memfd_create(f"triolet-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
