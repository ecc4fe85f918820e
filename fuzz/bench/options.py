"""What can be said to the sub-commands of `triolet bench`: a class each, a field an option.

Plain data with defaults; the command line's parser reads the annotations. What does not fit is
refused as soon as it is said. Must not know how anything is measured.
"""

from typing import Annotated

import attrs
from cyclopts import Parameter

from ...engine.errors import InvalidParameter
from ..figures import check_file
from .prompts import Work

TRANSFORMERS = "transformers"
# Of fewer steps none would be of a steady state.
TIMELINE_TOKENS_MIN = 16

Json = Annotated[
    str,
    Parameter(
        help="Write the figures as JSON to this file, or to stdout: -", allow_leading_hyphen=True
    ),
]
Quick = Annotated[bool, Parameter(help="A smaller run, for a first look: figures are rough.")]
Seed = Annotated[int, Parameter(help="Same seed, same prompts.")]
Rounds = Annotated[int, Parameter(help="How often it is measured, after one round to warm up.")]


def at_least(name: str, value: float, bound: float) -> None:
    """Raises `InvalidParameter` for a value below the bound, and for NaN."""
    if not value >= bound:
        raise InvalidParameter(name, f"must be at least {bound:g}, not {value:g}")


@attrs.frozen(kw_only=True)
class TimelineOptions:
    """Requests that run at once, and what of their steps is shown."""

    running: Annotated[int, Parameter(help="How many requests decode at once.")] = 64
    prompt_tokens: Annotated[int, Parameter(help="Length of each prompt, in tokens.")] = 64
    tokens: Annotated[int, Parameter(help="Length of each answer, in tokens.")] = 128
    steps: Annotated[int, Parameter(help="How many steps the picture shows.")] = 4
    svg: Annotated[str, Parameter(help="Write the picture to this file.")] = ""
    seed: Seed = 0
    json: Json = ""

    def __attrs_post_init__(self) -> None:
        for name in ("running", "prompt_tokens", "steps"):
            at_least(name, attrs.asdict(self)[name], 1)
        at_least("tokens", self.tokens, TIMELINE_TOKENS_MIN)
        if self.svg:
            check_file("svg", self.svg)


@attrs.frozen(kw_only=True)
class ThroughputOptions:
    """Offline: so many requests at once, and how long until the last one is answered."""

    requests: Annotated[int, Parameter(help="How many requests, all at once.")] = 64
    prompt_min: Annotated[int, Parameter(help="Shortest prompt, in tokens.")] = 32
    prompt_max: Annotated[int, Parameter(help="Longest prompt, in tokens.")] = 512
    tokens: Annotated[int, Parameter(help="Length of each answer, in tokens.")] = 128
    temperature: Annotated[float, Parameter(help="0 is greedy.")] = 0.0
    against: Annotated[
        str,
        Parameter(
            help="transformers: run its `generate` on the same prompts in turns with ours, and"
            " print the ratio."
        ),
    ] = ""
    against_threads: Annotated[int, Parameter(help="Threads of it; 0: as it chooses.")] = 0
    rounds: Rounds = 3
    seed: Seed = 0
    quick: Quick = False
    json: Json = ""

    def __attrs_post_init__(self) -> None:
        self.work()
        at_least("rounds", self.rounds, 1)
        at_least("temperature", self.temperature, 0)
        at_least("against_threads", self.against_threads, 0)
        if self.against not in ("", TRANSFORMERS):
            raise InvalidParameter("against", f"must be {TRANSFORMERS}, not {self.against!r}")
        if self.against and self.temperature:
            raise InvalidParameter("against", "compares greedy answers; leave --temperature at 0")

    def work(self) -> Work:
        """What is asked for; a quarter of it in a quick run. Raises `InvalidParameter`."""
        work = Work(
            requests=self.requests,
            prompt_min=self.prompt_min,
            prompt_max=self.prompt_max,
            tokens=self.tokens,
            seed=self.seed,
        )
        if not self.quick:
            return work
        return attrs.evolve(
            work, requests=max(1, self.requests // 4), tokens=max(1, self.tokens // 4)
        )

    def repeats(self) -> int:
        """Rounds that count."""
        return 1 if self.quick else self.rounds
