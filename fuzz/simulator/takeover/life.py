"""One simulated life of a frontend, and what outlives it: it may die at any effect.

An effect is a store to a connection's slot or to the journal, a system call that changes a
connection, or a word to the root. At the one that is planned the process dies: that and all later
ones do nothing, or half of a store is made; its tasks are cancelled where they wait next.
"""

import contextlib
import math
from collections.abc import Callable
from contextvars import ContextVar
from random import Random
from typing import Any

import attrs
import trio

from ....transports.takeover.slot import ConnectionSlot
from ...doubles.journal_memory import Freed, Published, Store, Stored, apply_store, torn
from .tcp import Process, SimKernel


@attrs.define(eq=False)
class SimLife(Process):
    """A process of the frontend; `note` hears of each of its effects."""

    number: int
    kernel: SimKernel
    note: Callable[[str], None]
    # It dies at this effect, counted from when `is_armed`.
    dies_at: float = math.inf
    is_torn: bool = False
    is_armed: bool = False
    effects: int = 0
    is_dead: bool = attrs.field(default=False, init=False)
    # Cut off from all others when it dies.
    cut_off: Callable[[], None] = attrs.field(default=lambda: None, init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    died: trio.Event = attrs.field(factory=trio.Event, init=False)

    def make(
        self, what: str, effect: Callable[[], None], tear: Callable[[], None] | None = None
    ) -> None:
        """See `tcp.Process`; of a store that can be torn `tear` makes a part."""
        if self.is_dead:
            return
        self.effects += self.is_armed
        if self.effects <= self.dies_at:
            self.note(f"{self.number}: {what}")
            effect()
            return
        if tear is not None and self.is_torn:
            tear()
        self.note(f"{self.number} dies at: {what}")
        self.die()

    def die(self) -> None:
        """As by SIGKILL."""
        self.is_dead = True
        self.cut_off()
        self.kernel.handle_death(self)
        self.scope.cancel("it was killed")
        self.died.set()


# A ring of input that wraps.
INPUT_BYTES_SIMULATED = 2**16
# Of the tasks of each life.
LIFE: ContextVar[SimLife] = ContextVar("simulated_life")


@attrs.define(eq=False)
class WatchedSlot(ConnectionSlot):
    """A slot whose stores are effects of the process that makes them, with a ring that wraps."""

    input_bytes: int = attrs.field(default=INPUT_BYTES_SIMULATED, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.memory = _WatchedView(self.memory, LIFE.get(), "slot")  # type: ignore[assignment]
        self._words = _WatchedView(self._words, LIFE.get(), "word")  # type: ignore[assignment]


@attrs.define(eq=False)
class _WatchedView:
    """Bytes, or words, which are stored in one."""

    memory: memoryview
    life: SimLife
    name: str

    def __len__(self) -> int:
        return len(self.memory)

    def __getitem__(self, part: Any) -> Any:
        return self.memory[part]

    def __setitem__(self, part: Any, data: Any) -> None:
        def effect() -> None:
            self.memory[part] = data

        def tear() -> None:
            half = len(data) // 2
            self.memory[part.start : part.start + half] = data[:half]

        is_word = isinstance(part, int)
        what = f"{self.name} {part}={data}" if is_word else f"{self.name} {part.start}"
        self.life.make(what, effect, None if is_word else tear)

    def release(self) -> None:
        self.memory.release()


@attrs.define(eq=False)
class LifeJournal:
    """The journal of a frontend as one life of it writes it: see `JournalMemory`."""

    data: bytearray
    life: SimLife

    def load(self, position: int, size: int) -> bytes:
        """A copy of so many bytes."""
        return bytes(self.data[position : position + size])

    def store(self, position: int, data: bytes) -> None:
        """Write these bytes."""
        self._make(Stored(position, bytes(data)))

    def publish(self, position: int, value: int) -> None:
        """Write one word."""
        self._make(Published(position, value))

    def free(self, begin: int, end: int) -> None:
        """Give the memory between back."""
        self._make(Freed(begin, end))

    def _make(self, store: Store) -> None:
        def tear() -> None:
            with contextlib.suppress(StopIteration):
                apply_store(self.data, next(torn(store, Random(str(store)))))

        what = f"journal {type(store).__name__}"
        self.life.make(what, lambda: apply_store(self.data, store), tear)
