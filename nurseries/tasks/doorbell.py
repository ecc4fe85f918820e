"""Reusable event for one waiting task: set by `ring`, cleared by the wait that it ends.

An event that is made anew for every wake-up costs more than all else on the way of a token, so the
waiting task parks itself.
"""

import attrs
from trio.lowlevel import checkpoint

from .parking import ParkingPlace


@attrs.define(eq=False)
class Doorbell:
    """See above. A ring without a waiter is kept for the next wait; several are one."""

    _is_rung: bool = attrs.field(default=False, init=False)
    _place: ParkingPlace = attrs.field(factory=ParkingPlace, init=False)

    def ring(self) -> None:
        """There is something to look at."""
        if not self._is_rung:
            self._is_rung = True
            self._place.wake()

    async def wait(self) -> None:
        """Return when it was rung since the last wait; one task at a time.

        A checkpoint in every case. Cancellation loses no ring.
        """
        assert not self._place.is_taken, "one task waits at a bell"
        if self._is_rung:
            await checkpoint()
        else:
            await self._place.park()
        self._is_rung = False
