"""`triolet bench prefix`: conversations that begin alike, with the prefix cache and without.

Conversations share a system prompt; each turn's prompt is the turn before it, its answer, and new
words. Two runtimes, with the cache and without, answer the same turns in turns, so that neighbours
on the machine slow both.
"""

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from ...engine.sampling_params import SamplingParams
from ...runtime.events import OnEvent, ignore_event
from ...runtime.runtime import Runtime, open_runtime
from ..load.measures import Spread
from ..options import PrefixOptions
from .throughput import plain_token_ids

OnEnded = Callable[[int], None]


@attrs.frozen(kw_only=True)
class PrefixFigures:
    """Figures of a runtime: seconds to the first token, and tokens found of those looked up.

    `later_s` are of those turns alone whose conversation has begun before.
    """

    cache: bool
    turns: int
    first_token_s: Spread
    later_s: Spread
    prompt_tokens: int
    cached_tokens: int

    @property
    def hit_rate(self) -> float:
        """Share of all prompt tokens that were not computed."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@attrs.define(eq=False)
class _Turns:
    """Results of a runtime's turns."""

    runtime: Runtime
    first_token_s: list[float] = attrs.field(factory=list)
    later_s: list[float] = attrs.field(factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0

    async def answer(
        self, prompt: list[int], params: SamplingParams, *, salt: str, is_first: bool
    ) -> None:
        """Take a turn; its answer is added to the prompt, which the next turn begins with."""
        began_s = time.perf_counter()
        async with self.runtime.generate(prompt, params, cache_salt=salt) as stream:
            await stream.__anext__()
            first_s = time.perf_counter() - began_s
            async for _ in stream:
                pass
        self.first_token_s.append(first_s)
        if not is_first:
            self.later_s.append(first_s)
        self.prompt_tokens += len(prompt)
        self.cached_tokens += stream.cached_tokens
        prompt += stream.token_ids

    def figures(self, *, cache: bool) -> PrefixFigures:
        """Summed up."""
        return PrefixFigures(
            cache=cache,
            turns=len(self.first_token_s),
            first_token_s=Spread.of(self.first_token_s),
            later_s=Spread.of(self.later_s),
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
        )


async def measure_prefix(
    model: str | None,
    options: PrefixOptions,
    *,
    engine: dict[str, Any],
    on_event: OnEvent = ignore_event,
    on_ended: OnEnded = lambda count: None,
) -> list[PrefixFigures]:
    """Figures with the cache, then without. Raises as `open_runtime` does."""
    words = {**engine}
    words.pop("prefix_cache", None)
    async with (
        open_runtime(model, on_event=on_event, **words, prefix_cache=True) as cached,
        open_runtime(model, on_event=on_event, **words, prefix_cache=False) as uncached,
    ):
        token_ids = plain_token_ids(cached)
        for salt, turns in (("warm up", 1), ("run", options.turns_each())):
            both = [_Turns(cached), _Turns(uncached)]
            await _converse(both, token_ids, options, turns=turns, salt=salt, on_ended=on_ended)
    return [both[0].figures(cache=True), both[1].figures(cache=False)]


async def _converse(
    both: Sequence[_Turns],
    token_ids: Sequence[int],
    options: PrefixOptions,
    *,
    turns: int,
    salt: str,
    on_ended: OnEnded,
) -> None:
    """Every conversation has its turns; those of a round run side by side in one runtime."""
    chance = random.Random(f"prefix {options.seed} {salt}")
    params = SamplingParams(max_tokens=options.tokens, temperature=0.0, ignore_eos=True)
    system = chance.choices(token_ids, k=options.system_tokens)
    prompts = [[list(system) for _ in range(options.conversations)] for _ in both]
    for turn in range(turns):
        said = [chance.choices(token_ids, k=options.user_tokens) for _ in prompts[0]]
        for taken, ours in zip(both, prompts, strict=True):
            async with trio.open_nursery() as nursery:
                for prompt, words in zip(ours, said, strict=True):
                    prompt += words
                    say = partial(taken.answer, salt=salt, is_first=turn == 0)
                    nursery.start_soon(say, prompt, params)
            on_ended(len(ours))
