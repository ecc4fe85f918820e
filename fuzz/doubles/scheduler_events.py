"""Events of the scheduler's fuzzer: sizes of an engine, what frontends ask, and how steps run."""

from random import Random

import attrs

VOCAB = 9  # small, so that stop tokens are met often
FRONTENDS = ("f0", "f1")


@attrs.frozen
class Sizes:
    """The first event of a round: how little room there is."""

    kv_blocks: int = 4
    max_num_seqs: int = 3
    max_num_batched_tokens: int = 5
    steps_in_flight: int = 2
    prefix_cache: bool = True
    scheduling_policy: str = "priority"
    step_time_target_s: float = 0.0


@attrs.frozen
class Add:
    """A new request, or so many choices of one; `is_embedded`: its prompt is embeddings."""

    frontend: str
    prompt: tuple[int, ...]
    max_tokens: int | None
    min_tokens: int
    eos: tuple[int, ...]
    stops: tuple[int, ...]
    ignore_eos: bool
    credit: int | None
    priority: int = 0
    choices: int = 1
    merge_s: float = 0.0
    in_columns: bool = False
    is_embedded: bool = False


@attrs.frozen
class Act:
    """`abort`, `grant`, `replay` or `fail` of whichever request.

    `number` is a credit or what is kept. What fails does so in the worker, at its next token.
    """

    what: str
    which: int
    number: int


@attrs.frozen
class Resync:
    """A link was cut: what is lost and what is no longer wanted, bit by bit."""

    frontend: str
    bits: int


@attrs.frozen
class Forget:
    """A frontend is given up."""

    frontend: str


@attrs.frozen
class Run:
    """Half steps: one is scheduled where its bit is set, the oldest finished if not.

    Each is the other where the one is not possible.
    """

    halves: int
    bits: int = 0


@attrs.frozen
class Lose:
    """The worker dies, and one that holds nothing takes its place."""


Event = Sizes | Add | Act | Resync | Forget | Run | Lose


def draw(chance: Random, count: int) -> list[Event]:
    """A small room, and more requests than it holds."""
    sizes = Sizes(
        kv_blocks=chance.randint(2, 9),
        max_num_seqs=chance.randint(1, 4),
        max_num_batched_tokens=chance.randint(1, 9),
        steps_in_flight=chance.choice((1, 2, 2)),
        prefix_cache=chance.random() < 0.7,
        scheduling_policy=chance.choice(("priority", "fcfs")),
        step_time_target_s=chance.choice((0.0, 0.1, 0.5)),
    )
    return [sizes, *(_draw_event(chance) for _ in range(count - 1))]


def _draw_event(chance: Random) -> Event:
    what = chance.random()
    if what < 0.3:
        return Run(chance.randint(1, 12), chance.getrandbits(12))
    if what < 0.55:
        return _draw_add(chance)
    if what < 0.57:
        return Resync(chance.choice(FRONTENDS), chance.getrandbits(40))
    if what < 0.575:
        return Forget(chance.choice(FRONTENDS))
    if what < 0.6:
        return Lose()
    acts = ("abort", "grant", "grant", "replay", "replay", "fail")
    return Act(chance.choice(acts), chance.randrange(60), chance.randrange(20))


def _draw_add(chance: Random) -> Add:
    def tokens(least: int, most: int) -> tuple[int, ...]:
        return tuple(chance.randrange(VOCAB) for _ in range(chance.randint(least, most)))

    # Prompts are the same for some tokens, so that there is something to share.
    common = tuple(range(chance.choice((0, 0, 3, 6, 8))))
    max_tokens = chance.choice((None, 1, 4, 12))
    min_tokens = chance.randrange(5) if chance.random() < 0.3 else 0
    return Add(
        frontend=chance.choice(FRONTENDS),
        prompt=common + tokens(not common, 9 - len(common)),
        max_tokens=max_tokens,
        min_tokens=min_tokens if max_tokens is None else min(min_tokens, max_tokens),
        eos=tokens(0, 1),
        stops=tokens(0, 1) if chance.random() < 0.3 else (),
        ignore_eos=chance.random() < 0.5,
        credit=chance.choice((None, None, 0, 2, 6)),
        priority=chance.choice((0, 0, 0, -1, 1)),
        choices=chance.choice((1, 1, 1, 1, 2, 3)),
        merge_s=chance.choice((0.0, 0.0, 0.4, 2.0, 5.0)),
        in_columns=chance.random() < 0.5,
        is_embedded=chance.random() < 0.2,
    )
