"""Hands out rows: the worker's places for requests.

Sans-IO: numbers only. Must not know requests.

The worker forgets a row when a step names it in `Step.finished`, and only then may the row be given
away again; so a row passes from taken through *released* (to be named) to free. The smallest free
number is taken, which keeps the worker's batch dense.
"""

import heapq

import attrs


@attrs.define(eq=False)
class RowPool:
    """`rows` rows numbered from 0."""

    rows: int = attrs.field(validator=attrs.validators.ge(1))

    # Heap of free rows. Each row is in exactly one of the three.
    _free: list[int] = attrs.field(init=False)
    _released: list[int] = attrs.field(factory=list, init=False)
    _taken: set[int] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self._free = list(range(self.rows))

    @property
    def available(self) -> int:
        """Rows that are free, or will be once the next step has named them."""
        return self.rows - len(self._taken)

    def take(self) -> int:
        """The smallest free row. The caller knows that there is one."""
        row = heapq.heappop(self._free)
        self._taken.add(row)
        return row

    def release(self, row: int) -> None:
        """Its request has left; the next step must name the row."""
        self._taken.remove(row)
        self._released.append(row)

    def name_released(self) -> list[int]:
        """Rows for the next `Step.finished`: with this they are free, also for the same step."""
        if not self._released:
            return []
        named, self._released = self._released, []
        for row in named:
            heapq.heappush(self._free, row)
        return named

    def check_invariants(self, taken: list[int]) -> None:
        """`taken`: the rows that requests hold. Fails if a row is lost or given twice."""
        assert len(set(taken)) == len(taken)
        assert set(taken) == self._taken
        assert sorted([*self._free, *self._released, *self._taken]) == list(range(self.rows))
