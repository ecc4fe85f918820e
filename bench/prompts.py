"""The prompts of offline benchmarks: token ids drawn from a seed, lengths evenly over a range.

Sans-IO: the same seed gives the same prompts. No two share a prefix longer than chance makes it, so
that a prefix cache helps none. Must not know who answers them.
"""

import random
from collections.abc import Sequence

import attrs

from ..engine.errors import InvalidParameter


@attrs.frozen(kw_only=True)
class Work:
    """What is to be done offline; lengths in tokens. Raises `InvalidParameter`."""

    requests: int
    prompt_min: int
    prompt_max: int
    tokens: int
    seed: int = 0

    def __attrs_post_init__(self) -> None:
        for name in ("requests", "prompt_min", "tokens"):
            if attrs.asdict(self)[name] < 1:
                raise InvalidParameter(name, f"must be at least 1, not {attrs.asdict(self)[name]}")
        if self.prompt_max < self.prompt_min:
            reason = f"must be at least --prompt-min ({self.prompt_min}), not {self.prompt_max}"
            raise InvalidParameter("prompt_max", reason)

    def prompts(self, token_ids: Sequence[int]) -> list[list[int]]:
        """The prompts of all requests, drawn from these tokens."""
        chance = random.Random(f"work {self.seed}")
        lengths = [chance.randint(self.prompt_min, self.prompt_max) for _ in range(self.requests)]
        return [chance.choices(token_ids, k=length) for length in lengths]
