"""Epochs that a host was given by its head, block by block, for the lives of its engines."""

from collections import deque
from collections.abc import Callable, Iterator

import attrs

# Another block is asked for when so few are left: more than a host uses while its head is away.
EPOCHS_LEFT = 64


@attrs.define(eq=False)
class EpochBlocks(Iterator[int]):
    """Iterator of the epochs given; `on_low` is called at each epoch when few are left.

    Raises `StopIteration` when there is none: a life that cannot begin, as any other.
    """

    on_low: Callable[[], object]
    # Bounded by what was asked for: a block at a time.
    _blocks: deque[range] = attrs.field(factory=deque, init=False)

    def add(self, block: range) -> None:
        """Take one more block, above all before."""
        if not self._blocks or block.start >= self._blocks[-1].stop:  # else it came twice
            self._blocks.append(block)

    def __next__(self) -> int:
        while self._blocks and not self._blocks[0]:
            self._blocks.popleft()
        if sum(map(len, self._blocks)) <= EPOCHS_LEFT:
            self.on_low()
        if not self._blocks:
            raise StopIteration
        block = self._blocks[0]
        self._blocks[0] = block[1:]
        return block.start
