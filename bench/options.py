"""Options of `triolet bench` and its sub-commands: a class each, a field an option.

Plain data with defaults; the command line's parser reads the annotations. Values that do not fit
are refused when they are parsed.
"""

import enum
import random
from collections.abc import Sequence
from typing import Annotated, Any

import attrs
from cyclopts import Group, Parameter

from ..api.commands.figures import check_file
from ..engine.errors import InvalidParameter

# Groups of `--help`.
PRESSED, LOAD, RESULT = (
    Group(title, sort_key=place) for place, title in enumerate(("Server", "Load", "Result"))
)


class Protocol(enum.StrEnum):
    """How requests are made."""

    LANES = "lanes"  # Responses over WebSocket, 16 lanes on a socket
    SSE = "sse"  # Responses over HTTP, streamed
    CHAT = "chat"  # chat completions, streamed
    HTTP = "http"  # Responses over HTTP, whole


@attrs.frozen(kw_only=True)
class BenchOptions:
    """The load, where it goes, and how the result is shown."""

    url: Annotated[
        str,
        Parameter(
            group=PRESSED,
            help="Server to load-test, as http://host:port; without it one is started.",
        ),
    ] = ""
    api_key: Annotated[
        str, Parameter(group=PRESSED, help="Key to send.", env_var="TRIOLET_API_KEY")
    ] = attrs.field(default="", repr=False)
    protocol: Annotated[
        Protocol,
        Parameter(group=LOAD, help="lanes (WebSocket), sse, chat (streamed), or http (whole)."),
    ] = Protocol.LANES
    requests: Annotated[int, Parameter(group=LOAD, help="Number of requests.")] = 256
    in_flight: Annotated[int, Parameter(group=LOAD, help="Maximum number of requests at once.")] = (
        64
    )
    rate: Annotated[
        float,
        Parameter(
            group=LOAD,
            help="Arrivals a second, at random times; 0: as soon as an earlier one ends.",
        ),
    ] = 0.0
    prompt_words: Annotated[int, Parameter(group=LOAD, help="Length of each prompt, in words.")] = (
        16
    )
    prompt_words_max: Annotated[
        int,
        Parameter(group=LOAD, help="Longest prompt, in words, if they are of different lengths."),
    ] = 0
    tokens: Annotated[int, Parameter(group=LOAD, help="Length of each answer, in tokens.")] = 64
    merge_ms: Annotated[
        int, Parameter(group=LOAD, help="Merge windows to ask for, in ms (lanes and sse); 0: none.")
    ] = 0
    seed: Annotated[int, Parameter(group=LOAD, help="Same seed, same prompts and times.")] = 0
    warm_up: Annotated[int, Parameter(group=LOAD, help="Requests before those that count.")] = 16
    json: Annotated[
        str,
        Parameter(
            group=RESULT,
            help="Write the figures as JSON to this file, or to stdout: -",
            allow_leading_hyphen=True,
        ),
    ] = ""
    frontends: Annotated[
        int, Parameter(group=PRESSED, help="Frontends of the server that is started.")
    ] = 1
    engines: Annotated[
        int, Parameter(group=PRESSED, help="Engines of the server that is started.")
    ] = 1


TRANSFORMERS = "transformers"
# Fewer steps would have none of a steady state.
TIMELINE_TOKENS_MIN = 16
# The first one computes the system prompt, the second one finds it.
PREFIX_QUICK_TURNS = 2
# Rounds of a load, for each request in flight; and requests of the smallest load.
LATENCY_ROUNDS = 4
LATENCY_REQUESTS_MIN = 8
# Arrivals a second: below it a run takes for ever.
RATE_MIN = 0.01

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


def at_least_one(options: Any, *names: str) -> None:
    """Raises `InvalidParameter` if any of these is less than one."""
    values = attrs.asdict(options)
    for name in names:
        at_least(name, values[name], 1)


@attrs.frozen(kw_only=True)
class Work:
    """Offline work; lengths in tokens. Raises `InvalidParameter`."""

    requests: int
    prompt_min: int
    prompt_max: int
    tokens: int
    seed: int = 0

    def __attrs_post_init__(self) -> None:
        at_least_one(self, "requests", "prompt_min", "tokens")
        if self.prompt_max < self.prompt_min:
            reason = f"must be at least --prompt-min ({self.prompt_min}), not {self.prompt_max}"
            raise InvalidParameter("prompt_max", reason)

    def prompts(self, token_ids: Sequence[int]) -> list[list[int]]:
        """The prompts of all requests, drawn from these tokens."""
        chance = random.Random(f"work {self.seed}")
        lengths = [chance.randint(self.prompt_min, self.prompt_max) for _ in range(self.requests)]
        return [chance.choices(token_ids, k=length) for length in lengths]


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
        at_least_one(self, "running", "prompt_tokens", "steps")
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
        """Work of these options; a quarter of it in a quick run. Raises `InvalidParameter`."""
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


@attrs.frozen(kw_only=True)
class LatencyOptions:
    """A server, and the loads that go to it one after another."""

    url: Annotated[
        str, Parameter(help="Server to load-test, as http://host:port; without it one is started.")
    ] = ""
    api_key: Annotated[str, Parameter(help="Key to send.", env_var="TRIOLET_API_KEY")] = (
        attrs.field(default="", repr=False)
    )
    protocols: Annotated[
        tuple[Protocol, ...],
        Parameter(help="lanes (WebSocket), sse, chat or http; repeatable."),
    ] = (Protocol.LANES, Protocol.SSE)
    concurrency: Annotated[
        tuple[int, ...],
        Parameter(help="Closed loop: number of requests in flight; repeatable."),
    ] = (1, 8, 32)
    rates: Annotated[
        tuple[float, ...],
        Parameter(help="Open loop: arrivals a second; repeatable."),
    ] = ()
    prompt_min: Annotated[int, Parameter(help="Shortest prompt, in words.")] = 32
    prompt_max: Annotated[int, Parameter(help="Longest prompt, in words.")] = 480
    tokens: Annotated[int, Parameter(help="Length of each answer, in tokens.")] = 128
    requests: Annotated[
        int, Parameter(help="Requests of each load; 0: four for each in flight, at least 8.")
    ] = 0
    frontends: Annotated[int, Parameter(help="Frontends of the server that is started.")] = 1
    engines: Annotated[int, Parameter(help="Engines of the server that is started.")] = 1
    seed: Seed = 0
    quick: Quick = False
    json: Json = ""

    def __attrs_post_init__(self) -> None:
        for in_flight in self.concurrency:
            at_least("concurrency", in_flight, 1)
        for rate in self.rates:
            at_least("rates", rate, RATE_MIN)
        at_least_one(self, "prompt_min", "tokens")
        at_least("prompt_max", self.prompt_max, self.prompt_min)
        at_least("requests", self.requests, 0)

    def requests_of(self, in_flight: int) -> int:
        """How many requests a load has; `in_flight` 0 in the open loop."""
        each = 1 if self.quick else LATENCY_ROUNDS
        return self.requests or max(each * in_flight, each * LATENCY_REQUESTS_MIN // LATENCY_ROUNDS)


@attrs.frozen(kw_only=True)
class StartupOptions:
    """A server that is started, loses its worker, and is stopped."""

    rounds: Annotated[int, Parameter(help="How often.")] = 3
    spares: Annotated[
        int, Parameter(help="Spare processes of each kind, as of serve; 0: every restart spawns.")
    ] = 1
    quick: Quick = False
    json: Json = ""

    def __attrs_post_init__(self) -> None:
        at_least("rounds", self.rounds, 1)
        at_least("spares", self.spares, 0)

    def words_of_spares(self) -> list[str]:
        """Options of `triolet serve`."""
        count = str(self.spares)
        return ["--spare-engines", count, "--spare-frontends", count]

    def repeats(self) -> int:
        """Servers that are started."""
        return 1 if self.quick else self.rounds


@attrs.frozen(kw_only=True)
class FloorOptions:
    """Steps of the kernels that are timed beside the machine's limits."""

    batch: Annotated[
        tuple[int, ...],
        Parameter(help="Rows of a decode step; repeatable."),
    ] = (1, 8, 32, 64)
    context: Annotated[int, Parameter(help="Tokens that each row has already.")] = 512
    prefill: Annotated[int, Parameter(help="Length of the prompt, in tokens.")] = 512
    mixed: Annotated[int, Parameter(help="Prompt tokens beside 32 decoding rows.")] = 256
    rounds: Rounds = 3
    quick: Quick = False
    json: Json = ""

    def __attrs_post_init__(self) -> None:
        for rows in self.batch:
            at_least("batch", rows, 1)
        at_least_one(self, "context", "prefill", "mixed", "rounds")

    def repeats(self) -> int:
        """Rounds that count."""
        return 1 if self.quick else self.rounds


@attrs.frozen(kw_only=True)
class PrefixOptions:
    """Conversations that begin with the same system prompt."""

    turns: Annotated[int, Parameter(help="Turns in all.")] = 64
    conversations: Annotated[int, Parameter(help="Conversations, side by side.")] = 8
    system_tokens: Annotated[int, Parameter(help="What they all begin with, in tokens.")] = 400
    user_tokens: Annotated[int, Parameter(help="What is new in each turn, in tokens.")] = 24
    tokens: Annotated[int, Parameter(help="Length of each answer, in tokens.")] = 16
    seed: Seed = 0
    quick: Quick = False
    json: Json = ""

    def __attrs_post_init__(self) -> None:
        at_least_one(self, "conversations", "system_tokens", "user_tokens", "tokens")
        at_least("turns", self.turns, self.conversations)

    def turns_each(self) -> int:
        """Turns of each conversation; in a quick run two at most."""
        each = self.turns // self.conversations
        return min(each, PREFIX_QUICK_TURNS) if self.quick else each
