"""Retention of what has ended, by id: each for its time, within a number and so many bytes.

Beyond these the oldest are forgotten before their time. Sans-IO: times come in.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

Item = TypeVar("Item")


@attrs.frozen
class _Kept(Generic[Item]):
    item: Item
    size_bytes: int
    until_s: float


@attrs.define(eq=False)
class Retention(Generic[Item]):
    """Times are of one clock. `on_forgotten` is called with what is forgotten of itself: its id,
    it, and whether its time was over.
    """

    count_max: int
    bytes_max: int
    on_forgotten: Callable[[str, Item, bool], None]
    size_bytes: int = attrs.field(default=0, init=False)
    # Oldest first.
    _kept: OrderedDict[str, _Kept[Item]] = attrs.field(factory=OrderedDict, init=False)

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def items(self) -> list[tuple[str, Item]]:
        """Items by name."""
        return [(name, kept.item) for name, kept in self._kept.items()]

    def keep(self, name: str, item: Item, size_bytes: int, until_s: float) -> None:
        """Keep an item as the latest; what has this id already is replaced."""
        self.drop(name)
        self._kept[name] = _Kept(item, size_bytes, until_s)
        self.size_bytes += size_bytes

    def replace(self, name: str, item: Item, size_bytes: int) -> None:
        """Another form of what is kept under this id, for the rest of its time."""
        kept = self._kept[name]
        self._kept[name] = attrs.evolve(kept, item=item, size_bytes=size_bytes)
        self.size_bytes += size_bytes - kept.size_bytes

    def find(self, name: str, now: float) -> Item | None:
        """The one of this id, if its time is not over."""
        self.forget_old(now)
        kept = self._kept.get(name)
        return None if kept is None or now >= kept.until_s else kept.item

    def drop(self, name: str) -> None:
        """Drop an item, if it is here."""
        kept = self._kept.pop(name, None)
        if kept is not None:
            self.size_bytes -= kept.size_bytes

    def forget_old(self, now: float) -> None:
        """The oldest, as long as its time is over, or there are too many."""
        while self._kept:
            name, oldest = next(iter(self._kept.items()))
            fits = len(self._kept) <= self.count_max and self.size_bytes <= self.bytes_max
            is_over = now >= oldest.until_s
            if fits and not is_over:
                return
            self.drop(name)
            self.on_forgotten(name, oldest.item, is_over)

    def check_invariants(self) -> None:
        """The sum, and the limits where nothing was kept since."""
        sizes = [kept.size_bytes for kept in self._kept.values()]
        assert sum(sizes) == self.size_bytes
        assert len(sizes) <= self.count_max
        assert self.size_bytes <= self.bytes_max
