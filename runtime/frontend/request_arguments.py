"""Arguments of a request: checked before anything is made of them, and split into its choices.

An engine drops a message that it cannot read, as it does not know whose it is; so a value of a
wrong type, which Python would pass on, must not get that far: the request would wait for ever.
Sampling parameters check themselves.

A request for several choices is one request to the engine for each. They share all but their
number, on which the sampler's draws depend: so with one seed they differ, and each is the same
wherever and however often it runs.

Sans-IO: values.
"""

import math
from collections.abc import Mapping

import attrs

from ...engine.embeddings import REQUEST_BYTES_MAX
from ...engine.errors import InvalidParameter
from ...engine.messages import AddRequest

# What the integers of the wire hold.
PRIORITY_MAX = 2**63 - 1
CREDIT_MAX = 2**63 - 1
# Token ids of all choices together: some 16 MiB on their way, and as much at an engine.
CHOICE_TOKENS_MAX = 2**22


def check_arguments(
    labels: Mapping[str, str],
    times_s: Mapping[str, float],
    *,
    priority: int,
    credit: int | None,
    events: bool,
) -> None:
    """Types and, where a type says too little, ranges; lengths and bounds are the engine's.

    `labels` and `times_s` are {name: value}. Raises `InvalidParameter`, naming the argument.
    """
    for name, text in labels.items():
        if not isinstance(text, str):
            raise InvalidParameter(name, "must be text")
        if not text.isascii():
            _check_unicode(name, text)
    if type(priority) is not int or abs(priority) > PRIORITY_MAX:
        raise InvalidParameter("priority", f"must be a whole number up to ±{PRIORITY_MAX}")
    if credit is not None and (type(credit) is not int or not 0 <= credit <= CREDIT_MAX):
        raise InvalidParameter("credit", f"must be a whole number from 0 to {CREDIT_MAX}")
    if type(events) is not bool:
        raise InvalidParameter("events", "must be True or False")
    for name, seconds in times_s.items():
        if type(seconds) not in (int, float) or math.isnan(seconds):
            raise InvalidParameter(name, "must be a number of seconds")


def _check_unicode(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameter(name, f"is not Unicode: {error.reason}") from error


def split_choices(request: AddRequest) -> list[AddRequest]:
    """One for each choice, in order; `request` itself if there is only one.

    They are named after it, and it is their `parent`. The prompt's logprobs come with the first
    alone. Raises `InvalidParameter` if they are too much together.
    """
    sampling = request.sampling
    count = sampling.n
    if count == 1:
        return [request]
    tokens = len(request.prompt_token_ids) + len(sampling.allowed_token_ids or ())
    if count * tokens > CHOICE_TOKENS_MAX:
        most = CHOICE_TOKENS_MAX // tokens
        raise InvalidParameter("n", f"must be at most {most} for a prompt of {tokens} tokens")
    embeds = request.prompt_embeds
    if embeds is not None and count * embeds.data.nbytes > REQUEST_BYTES_MAX:
        most, size = REQUEST_BYTES_MAX // embeds.data.nbytes, embeds.data.nbytes
        raise InvalidParameter("n", f"must be at most {most} for embeddings of {size} bytes")
    without_prompt = sampling
    if sampling.prompt_logprobs is not None:
        without_prompt = attrs.evolve(sampling, prompt_logprobs=None)
    return [
        attrs.evolve(
            request,
            request_id=f"{request.request_id}#{choice}",
            parent=request.request_id,
            choice=choice,
            sampling=without_prompt if choice else sampling,
        )
        for choice in range(count)
    ]
