"""The requests whose streams must not depend on anything: half greedy, half sampled, from a seed.

Some begin alike, so that there is a prefix to share; all ask for logprobs, whose bits tell more
than tokens do.
"""

from collections.abc import Sequence
from random import Random

import attrs

from triolet.engine.messages import AddRequest
from triolet.engine.sampling_params import SamplingParams

# How many beginnings there are, and how long they are in tokens: no multiples of a block.
BEGINNINGS, BEGINNING_TOKENS_MAX = 5, 150
PROMPT_TOKENS_MAX = 300
FIRST_TOKEN_ID = 5  # the bundled model's special tokens are before it


@attrs.frozen
class Stream:
    """What one request got: tokens, and the bytes of their logprobs, 4 each."""

    token_ids: tuple[int, ...]
    logprobs: bytes

    def rest(self, tokens: int) -> "Stream":
        """What comes after its first `tokens`."""
        return Stream(self.token_ids[tokens:], self.logprobs[4 * tokens :])


def draw_requests(count: int, *, tokens: int, vocabulary: int, seed: int) -> list[AddRequest]:
    """So many requests for `tokens` tokens each."""
    chance = Random(f"bitwise {seed}")

    def ids(least: int, most: int) -> list[int]:
        length = chance.randint(least, most)
        return [chance.randrange(FIRST_TOKEN_ID, vocabulary) for _ in range(length)]

    beginnings = [ids(1, BEGINNING_TOKENS_MAX) for _ in range(BEGINNINGS)]
    requests = []
    for number in range(count):
        prompt = [*chance.choice(beginnings), *ids(1, PROMPT_TOKENS_MAX - BEGINNING_TOKENS_MAX)]
        sampling = _greedy(tokens) if number % 2 else _sampled(chance, tokens)
        requests.append(
            AddRequest(
                request_id=f"r{number}", attempt=1, prompt_token_ids=prompt, sampling=sampling
            )
        )
    return requests


def _greedy(tokens: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=tokens,
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        repetition_penalty=1.0,
        seed=0,
        ignore_eos=True,
        logprobs=0,
    )


def _sampled(chance: Random, tokens: int) -> SamplingParams:
    return attrs.evolve(
        _greedy(tokens),
        temperature=chance.choice((0.7, 1.0, 1.3)),
        top_k=chance.choice((0, 0, 20)),
        top_p=chance.choice((1.0, 0.9)),
        min_p=chance.choice((0.0, 0.05)),
        repetition_penalty=chance.choice((1.0, 1.1)),
        presence_penalty=chance.choice((0.0, 0.4)),
        seed=chance.getrandbits(40),
    )


def replays(
    requests: Sequence[AddRequest], streams: dict[str, Stream], seed: int
) -> list[AddRequest]:
    """Each request as it is sent again after a death: cut at a random token, nothing to the end."""
    chance = Random(f"cuts {seed}")
    cuts = (chance.randrange(len(streams[one.request_id].token_ids)) for one in requests)
    return [
        attrs.evolve(one, attempt=2, output_token_ids=list(streams[one.request_id].token_ids[:cut]))
        for one, cut in zip(requests, cuts, strict=True)
    ]
