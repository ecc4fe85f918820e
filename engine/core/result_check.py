"""Matches what the workers say with what they were asked, before anything is changed by it.

Sans-IO: pure functions. Workers are ours, so a result that does not fit is a bug, not an attack:
it ends the engine with a message that says what did not fit, instead of a wrong token for somebody.
"""

from typing import ClassVar

import attrs

from ..errors import EngineError
from ..step_messages import RowLogprobs, StepResult
from .logprob_log import ITEM_BYTES
from .request import Request
from .step_draft import ScheduledStep

# In the place of a token, for a row that has none.
FAILED = -1


@attrs.frozen
class UnexpectedResult(EngineError):
    """A worker's result does not belong to the step in flight; the engine cannot go on."""

    code: ClassVar[str] = "unexpected_result"
    retryable: ClassVar[bool] = True  # on another engine
    step: int
    reason: str

    def __str__(self) -> str:
        return f"result of step {self.step}: {self.reason}"


def match_result(
    scheduled: ScheduledStep | None, result: StepResult, *, vocab_size: int
) -> list[int]:
    """The sampled tokens in the order of `scheduled.sampling`; the worker's order does not matter.

    `FAILED` is in the place of a row that failed alone.

    Raises `UnexpectedResult` for another step's result, for rows that are not exactly those that
    sample, and for tokens beyond the vocabulary.
    """
    if scheduled is None or result.number != scheduled.step.number:
        raise UnexpectedResult(result.number, "no such step is in flight")
    token_ids = result.token_ids
    if len(token_ids) != len(result.rows):
        raise UnexpectedResult(result.number, "rows and tokens differ in number")
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        raise UnexpectedResult(result.number, f"tokens {token_ids}, vocabulary {vocab_size}")
    rows = scheduled.sampling_rows
    if rows == result.rows and not result.failed_rows:
        return token_ids
    failed = [row for row, _ in result.failed_rows]
    if sorted(rows) != sorted(result.rows + failed):
        raise UnexpectedResult(result.number, f"rows {result.rows + failed}, expected {rows}")
    token_of_row = dict(zip(result.rows, token_ids, strict=True))
    return [token_of_row.get(row, FAILED) for row in rows]


def match_logprobs(
    scheduled: ScheduledStep | None, result: StepResult
) -> list[tuple[Request, RowLogprobs]]:
    """Whose logprobs each of the result's arrays are. Raises `UnexpectedResult`, as above."""
    if not result.logprobs or scheduled is None:
        return []
    found = []
    request_of_row = dict(zip(scheduled.step.rows, scheduled.requests, strict=True))
    for arrays in result.logprobs:
        request = request_of_row.get(arrays.row)
        positions, rest = divmod(len(arrays.ranks), ITEM_BYTES)
        items = ITEM_BYTES * positions * arrays.width
        if request is None or rest or not len(arrays.token_ids) == len(arrays.logprobs) == items:
            raise UnexpectedResult(result.number, f"logprobs of row {arrays.row} do not fit")
        found.append((request, arrays))
    return found
