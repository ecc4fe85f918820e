"""Checks an ADD against the model and the engine's limits: a bad request fails alone.

Sans-IO: one pure function. The codec has checked types, `SamplingParams` its own ranges; here is
what depends on the model, once more on this side of the wire, because an id beyond the vocabulary
or a length beyond the KV cache would end the worker and everybody's requests with it.
"""

from collections.abc import Collection

import attrs

from ..errors import InvalidParameter, PromptTooLong
from ..messages import AddRequest

# Our own ids have under 50 characters; a client's own may be longer, but not a document.
REQUEST_ID_CHARACTERS_MAX = 256
# Principals and salts are digests; pulled out of the air with room for names.
LABEL_CHARACTERS_MAX = 1024
# Numbers that the worker keeps in signed 32-bit integers.
CHOICE_MAX = 2**31 - 1


@attrs.frozen
class RequestLimits:
    """What a request must fit. Both in tokens.

    `max_model_len` is never more than the KV cache holds, so that every request fits when alone.
    """

    max_model_len: int
    vocab_size: int


def check_request(request: AddRequest, limits: RequestLimits) -> None:
    """Raises `InvalidParameter` (naming the field) or `PromptTooLong`; returns if it can be served.

    A replay that is already at its length is in order: it ends at once, with that reason.
    """
    _check_labels(request)
    prompt_tokens = len(request.prompt_token_ids)
    if prompt_tokens == 0:
        raise InvalidParameter("prompt", "must have at least one token")
    if prompt_tokens + 1 > limits.max_model_len:
        raise PromptTooLong(prompt_tokens, limits.max_model_len)
    _check_ids("prompt", request.prompt_token_ids, limits)
    _check_ids("output_token_ids", request.output_token_ids, limits)
    _check_ids("eos_token_ids", request.eos_token_ids, limits)
    _check_ids("stop_token_ids", request.sampling.stop_token_ids, limits)
    if request.sampling.seed is None:
        raise InvalidParameter("seed", "must be set: admission chooses one for each request")
    if request.sampling.min_tokens > 0:
        _check_suppressed(request, limits)


def _check_labels(request: AddRequest) -> None:
    if not 0 < len(request.request_id) <= REQUEST_ID_CHARACTERS_MAX:
        raise InvalidParameter(
            "request_id", f"must have 1 to {REQUEST_ID_CHARACTERS_MAX} characters"
        )
    if len(request.principal) > LABEL_CHARACTERS_MAX:
        raise InvalidParameter("principal", f"must have at most {LABEL_CHARACTERS_MAX} characters")
    if len(request.cache_salt) > LABEL_CHARACTERS_MAX:
        raise InvalidParameter("cache_salt", f"must have at most {LABEL_CHARACTERS_MAX} characters")
    if request.attempt < 0:
        raise InvalidParameter("attempt", f"must be at least 0, not {request.attempt}")
    if not 0 <= request.choice <= CHOICE_MAX:
        raise InvalidParameter("choice", f"must be from 0 to {CHOICE_MAX}")
    if request.credit is not None and request.credit < 0:
        raise InvalidParameter("credit", f"must be at least 0, not {request.credit}")


def _check_ids(name: str, token_ids: Collection[int], limits: RequestLimits) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < limits.vocab_size):
        raise InvalidParameter(name, f"must be token ids from 0 to {limits.vocab_size - 1}")


def _check_suppressed(request: AddRequest, limits: RequestLimits) -> None:
    ends = set(request.sampling.stop_token_ids)
    if not request.sampling.ignore_eos:
        ends.update(request.eos_token_ids)
    if len(ends) >= limits.vocab_size:
        raise InvalidParameter("min_tokens", "leaves no token to choose: every one would stop")
