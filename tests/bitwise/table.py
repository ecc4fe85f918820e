"""The variations of the table, and how streams are compared with those of requests run alone."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs

from triolet.engine.messages import AddRequest

from .engine import (
    BLOCK_TOKENS,
    PROMPT_TOKENS_MAX,
    ROWS_MAX,
    Outcome,
    Stream,
    Variation,
    replays,
    run,
)

EXECUTORS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "torch": {"executor": "torch", "bitwise": True},
        "native": {"executor": "native"},
    }
)
ALONE = Variation(name="alone", arrivals_max=0)
# So many of the longest requests have room at once.
TINY_POOL_REQUESTS = 4


def variations(tokens: int, parts: Sequence[str] = ("",)) -> list[Variation]:
    """Those whose names have one of `parts`, for requests of so many output tokens.

    Raises `ValueError` for a part of no name.
    """
    known = _variations(tokens)
    for part in parts:
        if not any(part in one.name for one in known):
            raise ValueError(f"no way is called {part!r}: {', '.join(one.name for one in known)}")
    return [one for one in known if any(part in one.name for part in parts)]


def _variations(tokens: int) -> list[Variation]:
    longest = -(-(PROMPT_TOKENS_MAX + tokens) // BLOCK_TOKENS)
    tiny = TINY_POOL_REQUESTS * longest
    drawn = Variation(name="random arrival and chunks", arrivals_max=3, budget=(ROWS_MAX, 200))
    everything = attrs.evolve(
        drawn, name="all of that", kv_blocks=tiny, prefix_cache=True, steps_in_flight=2, threads=2
    )
    return [
        Variation(name="all at once", arrivals_max=ROWS_MAX),
        drawn,
        Variation(name="whole answers, larger steps", arrivals_max=ROWS_MAX, merge_s=1.0),
        attrs.evolve(drawn, name="two threads", threads=2),
        attrs.evolve(drawn, name="steps overlap", steps_in_flight=2),
        attrs.evolve(drawn, name="prefix cache", prefix_cache=True),
        attrs.evolve(drawn, name="tiny KV pool", kv_blocks=tiny),
        everything,
        attrs.evolve(everything, name="all of that, replayed", replayed=True),
        attrs.evolve(everything, name="all of that, workers lost", lost_once_in=12),
    ]


@attrs.frozen
class Line:
    """How many streams of one variation were identical, tokens and bits of logprobs."""

    executor: str
    variation: str
    streams: int
    identical: int
    outcome: Outcome

    @property
    def good(self) -> bool:
        """All of them."""
        return self.identical == self.streams

    def __str__(self) -> str:
        found = self.outcome
        way = f"{found.steps:8}{found.preemptions:13}{found.prefix_hits:12}"
        verdict = "" if self.good else "  DIFFERENT"
        streams = f"{self.streams:8}{self.identical:11}"
        return f"{self.executor:8}{self.variation:28}{streams}{way}{verdict}"


HEAD = (
    f"{'':8}{'':28}{'streams':>8}{'identical':>11}{'steps':>8}{'preemptions':>13}{'from cache':>12}"
)


def lines(
    folder: pathlib.Path,
    executor: str,
    requests: Sequence[AddRequest],
    chosen: Sequence[Variation],
    *,
    seed: int = 0,
    **changes: Any,
) -> Iterator[Line]:
    """Each request alone, then each variation beside it; `changes` are of settings."""
    settings = {**EXECUTORS[executor], **changes}
    alone = run(folder, settings, ALONE, requests, seed=seed)
    yield Line(executor, ALONE.name, len(requests), len(alone.streams), alone)
    for variation in chosen:
        sent = replays(requests, alone.streams, seed) if variation.replayed else requests
        outcome = run(folder, settings, variation, sent, seed=seed)
        identical = count_identical(sent, alone.streams, outcome.streams)
        yield Line(executor, variation.name, len(sent), identical, outcome)


def count_identical(
    sent: Sequence[AddRequest], alone: Mapping[str, Stream], found: Mapping[str, Stream]
) -> int:
    """How many streams are those of the request alone, beside the tokens that it had already."""
    return sum(
        found.get(one.request_id) == alone[one.request_id].rest(len(one.output_token_ids))
        for one in sent
    )
