"""Where the outputs of a request for several choices wait for their one consumer.

Each choice has a `MergedSlot` of its own, filled as that of a request alone; here is whose turn it
is: choices are taken from in the order in which they had something to say, each as a whole, so that
none waits for more than the others' one piece. Must not know engines, credit or the wire.
"""

from collections.abc import Sequence
from functools import partial

import attrs
import trio

from ..text.outputs import GenerationOutput
from .output_collector import MergedSlot, Outlet


@attrs.define(eq=False)
class ChoiceSlots(Outlet):
    """As one `MergedSlot`, of all choices; one task takes. `slots[i]` is of choice i."""

    slots: Sequence[MergedSlot]

    # Choices that may have something to take, whose turn it is first; each once.
    _ready: dict[int, None] = attrs.field(factory=dict, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        for index, slot in enumerate(self.slots):
            slot.follow(partial(self._note_ready, index))

    @property
    def finished(self) -> bool:
        """The end of every choice, or a failure, was put."""
        return all(slot.finished for slot in self.slots)

    @property
    def tokens_waiting(self) -> int:
        """How many tokens the consumer has not taken yet."""
        return sum(slot.tokens_waiting for slot in self.slots)

    def close(self) -> None:
        """The consumer has gone: drop what is here and whatever still comes."""
        self._closed = self.is_ready = True
        self._on_ready = self._consumer.wake
        for slot in self.slots:
            slot.close()
        self._consumer.wake()

    def take_nowait(self) -> GenerationOutput | None:
        """What one choice has, merged up to its next event; None when there is nothing yet.

        Raises what `MergedSlot.take_nowait` does, of any choice.
        """
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
        self.is_ready = False
        return None

    def _note_ready(self, index: int, is_end: bool) -> None:
        self._ready[index] = None
        self.is_ready = True
        self._on_ready(is_end and self.finished)
