"""Responses of a simulated frontend: what its clients come back to, in this life or a later.

In the place of `api.responses`, over the same journal: it names requests, says when they have
ended, and adopts what a life before has left. What no client comes back to ends after a while.
"""

from collections.abc import Container

import attrs
import trio

from ...nurseries.tasks.background import waiting_for
from ...runtime.frontend.adoption import AdoptedStream
from ...runtime.journal.journal import AdmissionNote, Journal
from .kernel import SimProcess
from .plan import Request

# So long a stream waits for its client in each life, and an ended one for who reads it again.
KEPT_S = 4.0
# The surface of their records in the journal.
SURFACE = "simulated"
# What its journal says of the end of each.
ENDED = b"ended"


@attrs.define(eq=False)
class Forgotten:
    """Names of responses that frontends were asked to forget, over all their lives.

    A process that dies while it forgets one may have stored that or not: the next life shows which.
    """

    # Those that were: they may never come again.
    names: set[str] = attrs.field(factory=set, init=False)
    # {name: its home} of those that may come again, cut short perhaps.
    begun: dict[str, int] = attrs.field(factory=dict, init=False)

    def end(self, name: str) -> None:
        """It was stored."""
        self.begun.pop(name, None)
        self.names.add(name)

    def handle_adopted(self, home: int, found: Container[str]) -> None:
        """A life has found these in the journal of this home."""
        for name, at in list(self.begun.items()):
            if at == home and name not in found:
                self.end(name)


@attrs.define(eq=False)
class SimResponses:
    """Of one home in one life of a frontend."""

    process: SimProcess
    home: int
    journal: Journal
    # By it, and by lives before.
    forgotten: Forgotten
    # By name; without those that clients of this life have begun, or have come back to.
    adopted: dict[str, AdoptedStream] = attrs.field(factory=dict, init=False)
    adopted_at: float = attrs.field(factory=trio.current_time, init=False)
    # Those that may end, as they have no reader.
    _unread: set[str] = attrs.field(factory=set, init=False)

    def note(self, name: str, request: Request) -> AdmissionNote:
        """For the journal."""
        return AdmissionNote(
            name=name,
            surface=SURFACE,
            body=b"",
            created_at=0,
            is_resumable=request.is_resumable,
        )

    def adopt(self, streams: list[AdoptedStream]) -> None:
        """They wait for their clients."""
        for stream in streams:
            if stream.generation is not None:
                stream.note_rebuilding()
            self.adopted[stream.name] = stream
            stream.note_rebuilt()

    def start(self) -> None:
        """From now on clients may come back."""
        self._unread |= self.adopted.keys()
        for name in self.adopted:
            self.process.start_soon(self._expire, name)

    def read(self, name: str) -> AdoptedStream | None:
        """A client has come back; None if its stream is not there."""
        self._unread.discard(name)
        return self.adopted.pop(name, None)

    def end(self, name: str) -> None:
        """It has ended, and its client does not know yet."""
        self.journal.end(name, ENDED)
        self._unread.add(name)
        self.process.start_soon(self._expire, name)

    def forget(self, name: str) -> None:
        """It is wanted no more."""
        if self.process.is_alive:
            self.forgotten.begun[name] = self.home
        stream = self.adopted.pop(name, None)
        if stream is not None:
            stream.forget()
        else:
            self.journal.forget(name)
        if self.process.is_alive:
            self.forgotten.end(name)

    async def _expire(self, name: str) -> None:
        with waiting_for("a client to come back"):
            await trio.sleep(KEPT_S)
        if name in self._unread:
            self.forget(name)
