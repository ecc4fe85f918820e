"""Reading on behind what the journal has lost: it is computed again, and the reader waits for it.

After the death of the machine the last moments of a journal may be missing, so that a reader comes
back by a number that its stream has not reached. Engines of the same numerics give the same tokens,
and with them the same numbers, again; of others they would be other tokens, which is an error.
"""

from collections.abc import Callable
from typing import Protocol

from ..errors import ApiError, bad_field
from .record import NUMBERS_OF_TOKEN
from .response import Response
from .store import ResponseStore

# At a time; of no consequence but for how long it holds the loop.
_PIECE = 1024


class Attached(Protocol):
    """A reader of a stream that goes on."""

    async def wait_ready(self) -> None:
        """Return when there is more, or nothing will come any more."""

    def take(self, size_max: int, /) -> object:
        """What has come."""


async def wait_recomputed(
    reader: Attached, is_there: Callable[[], bool], is_other: Callable[[], bool]
) -> None:
    """Return when what was seen is there. Raises `ApiError` 410 where it will not be the same."""
    while not is_there():
        if is_other():
            raise events_lost()
        await reader.wait_ready()
        reader.take(_PIECE)
    if is_other():
        raise events_lost()


async def catch_up(store: ResponseStore, response: Response, number: int | None) -> None:
    """Wait for the event of this number where it was lost.

    Raises `ApiError` 410 where it was and cannot be had again.
    """
    record = response.record
    if number is None or not store.may_lack_events(response.response_id):
        return

    def is_inexact() -> bool:
        inexact_from = record.inexact_from
        return inexact_from is not None and number > inexact_from * NUMBERS_OF_TOKEN

    with response.reading() as reader:
        await wait_recomputed(
            reader, lambda: number <= record.last_number or response.has_ended, is_inexact
        )


def events_lost() -> ApiError:
    """Of a number whose event was lost, and whose stream has gone on otherwise."""
    reason = "was lost with the machine, and another engine has gone on in another way"
    refused = bad_field("starting_after", reason, "events_lost")
    return ApiError(410, refused.message, refused.code, param=refused.param)
