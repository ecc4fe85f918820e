"""Where the outputs of a request for several choices wait for their one consumer.

Each choice has a `MergedSlot` of its own, filled as that of a request alone; here is whose turn it
is: choices are taken from in the order in which they had something to say, each as a whole, so that
none waits for more than the others' one piece. Must not know engines, credit or the wire.
"""

from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from ..nurseries.parking import ParkingPlace
from .merged_slot import MergedSlot
from .request_output import GenerationOutput


@attrs.define(eq=False)
class ChoiceSlots:
    """As one `MergedSlot`, of all choices; one task takes. `slots[i]` is of choice i."""

    slots: Sequence[MergedSlot]

    # Choices that may have something to take, whose turn it is first; each once.
    _ready: dict[int, None] = attrs.field(factory=dict, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    _consumer: ParkingPlace = attrs.field(factory=ParkingPlace, init=False)
    _on_ready: Callable[[bool], None] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        for index, slot in enumerate(self.slots):
            self._follow(index, slot)

    def _follow(self, index: int, slot: MergedSlot) -> None:
        slot.follow(lambda _: self._note_ready(index))

    @property
    def is_ready(self) -> bool:
        """`take_nowait` may have something to say."""
        return bool(self._ready or self._closed)

    @property
    def finished(self) -> bool:
        """The end of every choice, or a failure, was put."""
        return all(slot.finished for slot in self.slots)

    @property
    def tokens_waiting(self) -> int:
        """How many tokens the consumer has not taken yet."""
        return sum(slot.tokens_waiting for slot in self.slots)

    def follow(self, on_ready: Callable[[bool], None]) -> None:
        """See `MergedSlot.follow`."""
        self._on_ready = on_ready

    def close(self) -> None:
        """The consumer has gone: drop what is here and whatever still comes."""
        self._closed = True
        self._on_ready = None
        for slot in self.slots:
            slot.close()
        self._wake()

    async def take(self) -> GenerationOutput:
        """Wait until a choice has something and take it, merged up to its next event.

        Raises what `MergedSlot.take` does, of any choice. A checkpoint in every case. Cancellation
        loses nothing.
        """
        while True:
            await self.wait_ready()
            output = self.take_nowait()
            if output is not None:
                return output

    def wait_ready(self) -> Awaitable[None]:
        """See `MergedSlot.wait_ready`; there may be nothing to take after all."""
        if self.is_ready:
            return trio.lowlevel.checkpoint()  # noqa: ASYNC105 - the caller awaits it
        return self._consumer.park()

    def take_nowait(self) -> GenerationOutput | None:
        """The same, or None when there is nothing yet."""
        if self._closed:
            raise trio.ClosedResourceError("the stream's block was left")
        while self._ready:
            index = next(iter(self._ready))
            del self._ready[index]
            output = self.slots[index].take_nowait()
            if output is None:
                continue
            output.index = index
            if output.finish_reason is None:
                self._ready[index] = None  # perhaps there is more, for which nobody calls
            return output
        return None

    def _note_ready(self, index: int) -> None:
        self._ready[index] = None
        self._wake()

    def _wake(self) -> None:
        if self._on_ready is not None:
            self._on_ready(self.finished)
        else:
            self._consumer.wake()
