"""What a response needs of the store in which it is known from its admission on.

The store holds responses, so it is above them; here is what they say to it.
"""

from typing import Protocol, TypeVar

from ...runtime.journal.journal import AdmissionNote

Known = TypeVar("Known", contravariant=True)


class Store(Protocol[Known]):
    """Where a response is known."""

    def note_of(self, response: Known) -> AdmissionNote | None:
        """What a successor of this frontend is to find of it."""

    def add(self, response: Known) -> None:
        """It runs."""

    def end(self, response: Known) -> None:
        """It has ended, for whatever reason."""

    def handle_left(self, response: Known) -> None:
        """It has ended, and nobody reads it, or is to answer with it, any more."""
