"""Says whether a request's newest token ends it, and why.

Sans-IO: one pure function of the request's tokens, so that a replay stops where the first attempt
would have. Must not know text: stop strings are the frontend's, which then aborts.

Order, as vLLM's: end of sequence, stop tokens, length. While fewer than `min_tokens` are out the
first two do not count (the worker gives those ids probability 0, so they are not even sampled);
length always does, or a request could outgrow the model.
"""

import attrs

from ..messages import FinishReason
from .request import Request


@attrs.frozen
class Stop:
    """Why a request ends. `token_id` is the stop token; None for end of sequence and length."""

    reason: FinishReason
    token_id: int | None = None
    # The last token is text like any other: nothing but the end may follow it.
    complete: bool = False


_END_OF_SEQUENCE = Stop(FinishReason.STOP)
# The output is all that its grammar allows: nothing can follow but the end of sequence.
COMPLETE = Stop(FinishReason.STOP, complete=True)
_LENGTH = Stop(FinishReason.LENGTH)


def check_stop(request: Request) -> Stop | None:
    """The first rule that the last output token meets; None to go on, also without any output."""
    length = len(request.token_ids)
    if length <= request.prompt_tokens:
        return None
    if length >= request.length_min:
        last = request.token_ids[-1]
        if last in request.eos_token_ids:
            return _END_OF_SEQUENCE
        if last in request.stop_token_ids:
            return Stop(FinishReason.STOP, last)
    if length >= request.length_max:
        return _LENGTH
    return None
