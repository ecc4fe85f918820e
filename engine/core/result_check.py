"""Matches what the workers say with what they were asked, before anything is changed by it.

Sans-IO: one pure function. Workers are ours, so a result that does not fit is a bug, not an attack:
it ends the engine with a message that says what did not fit, instead of a wrong token for somebody.
"""

from typing import ClassVar

import attrs

from ..errors import EngineError
from ..step_messages import StepResult
from .scheduler import ScheduledStep


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
    rows = [request.row for request in scheduled.sampling]
    if rows == result.rows:
        return token_ids
    if sorted(rows) != sorted(result.rows):
        raise UnexpectedResult(result.number, f"rows {result.rows}, expected {rows}")
    token_of_row = dict(zip(result.rows, token_ids, strict=True))
    return [token_of_row[row] for row in rows]
