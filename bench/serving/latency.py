"""`triolet bench latency`: one server, and a load on it for each protocol and concurrency.

The closed loop keeps so many requests in flight; the open one lets them arrive as strangers do.
Prompts are words of the load generator, about a token each.
"""

from collections.abc import Iterator
from typing import Any

import attrs

from ...runtime.events import OnEvent
from ..load.command import open_pressed_server, press
from ..load.measures import Measures
from ..load.schedule import Load
from ..options import LatencyOptions, Protocol

# At most so many in flight in the open loop: a server that does not keep up must not drown.
OPEN_IN_FLIGHT_MAX = 256
# Each load has prompts of its own, so that the prefix cache has none of them.
_SEED_STRIDE = 10_007


@attrs.frozen(kw_only=True)
class LatencyRow:
    """Load and its measures."""

    protocol: Protocol
    load: Load
    measures: Measures

    def loop(self) -> str:
        """How requests came: so many in flight, or so many a second."""
        load = self.load
        return f"{load.rate:g}/s" if load.rate else str(load.in_flight)


def loads(options: LatencyOptions) -> Iterator[tuple[Protocol, Load]]:
    """Loads in the order in which they are run."""
    number = 0
    for protocol in options.protocols:
        for rate, in_flight in (
            *((0.0, each) for each in options.concurrency),
            *((rate, OPEN_IN_FLIGHT_MAX) for rate in options.rates),
        ):
            number += 1
            yield (
                protocol,
                Load(
                    requests=options.requests_of(in_flight if not rate else 0),
                    in_flight=in_flight,
                    rate=rate,
                    prompt_words=options.prompt_min,
                    prompt_words_max=options.prompt_max,
                    tokens=options.tokens,
                    seed=options.seed + number * _SEED_STRIDE,
                ),
            )


async def measure_latency(
    model: str | None,
    options: LatencyOptions,
    *,
    engine: dict[str, Any],
    on_event: OnEvent,
) -> list[LatencyRow]:
    """Run all loads. Raises what the root raises, and `ServerGone`."""
    rows = []
    async with open_pressed_server(model, options, engine=engine, on_event=on_event) as server:
        for protocol, load in loads(options):
            warm_up = min(load.in_flight, load.requests)
            measures = await press(load, server, protocol, warm_up=warm_up)
            rows.append(LatencyRow(protocol=protocol, load=load, measures=measures))
    return rows
