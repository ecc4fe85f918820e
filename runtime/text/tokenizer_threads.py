"""Threads that tokenise, apart from trio's own, and fair between principals."""

from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

import attrs
import trio

from ..hands import Hold
from .fair_turns import FairTurn, TurnQueue

Result = TypeVar("Result")


@attrs.define(eq=False)
class TokenizerThreads:
    """A few threads for one process; trio's own may all be asleep."""

    _queue: TurnQueue
    _limiter: trio.CapacityLimiter
    # Events of turns that wait.
    _events: dict[FairTurn, trio.Event] = attrs.field(factory=dict, init=False)

    @classmethod
    def make(cls, threads: int, waiting_max: int) -> Self:
        """Make so many threads; of one principal at most `waiting_max` calls wait."""
        return cls(TurnQueue(threads, waiting_max), trio.CapacityLimiter(threads))

    async def run(
        self,
        call: Callable[[], Result],
        principal: str,
        cost: int,
        *,
        hold: Callable[[], Awaitable[Hold]],
    ) -> Result:
        """Run `call` in a thread when it is this principal's turn; returns or raises what it does.

        `cost` is what it counts for: about the characters. `hold` takes in hand what it reads, and
        may raise. Raises `Overloaded` if too much waits.
        *Cancellation*: a turn that waits is given up; a thread is waited for to its end.
        """
        turn = self._queue.ask(principal, cost)
        try:
            if not turn.begun:
                event = self._events[turn] = trio.Event()
                await event.wait()
            with await hold():
                return await trio.to_thread.run_sync(call, limiter=self._limiter)
        finally:
            self._events.pop(turn, None)
            for begun in self._queue.leave(turn):
                self._events[begun].set()
