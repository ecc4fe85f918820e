"""Shared memory of an engine's place: what its workers fill outlives them, and its successor finds.

Three memfds, passed beside INIT from the root to an engine, and from it to its workers: the weights
of the run, which all its engines share, the keys and values of one engine's blocks, and the names
of those blocks. Here is which of them is which; who fills them, and when they are true, is said in
`worker.native.executor` and `block_names`.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

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


@contextmanager
def open_memory_of_places(count: int = 1) -> Iterator[list[PlaceMemory]]:
    """Empty memory of as many engines of one run. Raises `OSError`."""
    with ExitStack() as owned:

        def create(name: str) -> int:
            # People see the name in `/proc/PID/smaps`.
            fd = os.memfd_create(f"triolet-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            owned.callback(os.close, fd)
            return fd

        weights = create("weights")
        yield [PlaceMemory(weights, create("cache"), create("names")) for _ in range(count)]
