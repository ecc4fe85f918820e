"""Makes one request to an engine for each choice that a client wants of a prompt.

Sans-IO: values. Choices share all but their number, on which the sampler's draws depend: so with
one seed they differ, and each is the same wherever and however often it runs. Must not know
engines, or how outputs come together again.
"""

import attrs

from ...engine.embeddings import REQUEST_BYTES_MAX
from ...engine.errors import InvalidParameter
from ...engine.messages import AddRequest

# Token ids of all choices together: some 16 MiB on their way, and as much at an engine.
CHOICE_TOKENS_MAX = 2**22


def split_choices(request: AddRequest) -> list[AddRequest]:
    """One for each choice, in order; `request` itself if there is only one.

    They are named after it, and it is their `parent`. The prompt's logprobs are told of the first
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
