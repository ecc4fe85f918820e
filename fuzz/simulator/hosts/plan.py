"""Plans with several machines: what happens in one, and to hosts. Plain values."""

from random import Random

import attrs

from ..plan import OF_HOSTS, Event, Fault, Request, Setup, draw

# Higher than any: all engines have one numerics id.
RANKS_MAX = 100
HOSTS = Setup(engines=1, window_tokens=4, hosts=2, is_apart=True, unlike_from=RANKS_MAX)


def draw_with_hosts(chance: Random, count: int) -> list[Event]:
    """A setup with hosts, requests, and faults, also of hosts."""
    events = draw(chance, count)
    setup = next(each for each in events if isinstance(each, Setup))
    return with_hosts(events, setup, chance)


def with_hosts(events: list[Event], setup: Setup, chance: Random) -> list[Event]:
    """The same on several machines, and what befalls these.

    Without poison: evidence of what other machines' engines died of has a way that may be late.
    """
    setup = attrs.evolve(
        setup,
        hosts=chance.choice((1, 2)),
        host_rate=chance.choice((1.0, 1.03, 0.97)),
        host_delay_s=chance.choice((0.0, 0.0, 0.02, 0.3)),
        is_apart=True,
        unlike_from=RANKS_MAX,
        hanging=0.0,  # which would be another machine's to wait for
    )
    requests = [
        attrs.evolve(each, is_poison=False, fatal_at=None)
        for each in events
        if isinstance(each, Request)
    ]
    tokens = sum(request.n * request.max_tokens for request in requests)
    others = [each for each in events if not isinstance(each, Setup | Request)]
    faults = [_draw_fault(chance, tokens) for _ in range(chance.randint(1, 4))]
    return [setup, *requests, *others, *faults]


def _draw_fault(chance: Random, tokens: int) -> Fault:
    return Fault(
        kind=chance.choice(OF_HOSTS),
        at_s=0.0,
        tokens=chance.randrange(tokens),
        host=chance.randrange(2),
        for_s=chance.choice((0.6, 1.5, 2.0, 4.5, 6.0)),
    )
