"""`triolet bench` without a sub-command: press a server with one load, and show what it took.

Must not know protocols or how figures are made.
"""

import sys
from typing import Any

import attrs
from rich.console import Console

from ...api.commands.figures import check_target, shows_table, write_figures
from ...runtime.events import OnEvent
from .client import Client, Target
from .http import HttpClient, HttpKind
from .lanes import LANES_MAX, LanesClient
from .measures import Measures, measure
from .options import BenchOptions, Protocol
from .pressed_server import PressedServer, open_pressed_server
from .report import Bar, print_table
from .runner import Runner
from .schedule import Load

# Prompts of the warm-up are others, so that none of those that count is in the prefix cache.
_WARM_UP_SEED = 1_000_003


async def bench(
    model: str | None, options: BenchOptions, *, engine: dict[str, Any], on_event: OnEvent
) -> None:
    """Run the load and show it. Raises what the server's root raises, and `ServerGone`."""
    check_target(options.json)
    load = Load(
        requests=options.requests,
        in_flight=options.in_flight,
        rate=options.rate,
        prompt_words=options.prompt_words,
        prompt_words_max=options.prompt_words_max,
        tokens=options.tokens,
        seed=options.seed,
        merge_ms=options.merge_ms,
    )
    opened = open_pressed_server(
        model,
        url=options.url,
        api_key=options.api_key,
        engine=engine,
        engines=options.engines,
        frontends=options.frontends,
        on_event=on_event,
    )
    async with opened as server:
        measures = await press(load, server, options.protocol, warm_up=options.warm_up)
    show(measures, load, options)


async def press(load: Load, server: PressedServer, protocol: Protocol, *, warm_up: int) -> Measures:
    """Warm up with so many requests, then run the load."""
    if warm_up > 0:
        warm = attrs.evolve(
            load,
            requests=warm_up,
            in_flight=min(load.in_flight, warm_up),
            rate=0.0,
            seed=load.seed + _WARM_UP_SEED,
        )
        await make_runner(warm, server.target, protocol).run()
    bar = Bar(Console(stderr=True), load.requests)
    with bar.shown():
        runner = make_runner(load, server.target, protocol, pid=server.pid)
        runner.on_ended = bar.advance
        run = await runner.run()
    return measure(
        run.histories,
        elapsed_s=run.elapsed_s,
        client_cpu_s=run.client_cpu_s,
        before=run.costs_before,
        after=run.costs_after,
    )


def make_runner(load: Load, target: Target, protocol: Protocol, *, pid: int = 0) -> Runner:
    """A run with as many connections as the load needs: a place for each request in flight."""
    places = min(load.in_flight, load.requests)
    if protocol is Protocol.LANES:
        sockets = -(-places // LANES_MAX)
        return Runner(load, target, lambda: LanesClient(target), sockets, server_pid=pid)
    kind = HttpKind(protocol.value)

    def make_client() -> Client:
        return HttpClient(target, kind)

    return Runner(load, target, make_client, places, server_pid=pid)


def show(measures: Measures, load: Load, options: BenchOptions) -> None:
    """The table, unless stdout is for JSON; and the JSON, if it was asked for."""
    if shows_table(options.json):
        loop = f"{load.rate:g} arrivals/s" if load.rate else f"{load.in_flight} in flight"
        title = f"{options.protocol.value}: {load.requests} requests, {loop}, {load.tokens} tokens"
        print_table(Console(file=sys.stdout), title, measures)
    figures = {
        "command": "load",
        "protocol": options.protocol.value,
        "load": attrs.asdict(load),
        **attrs.asdict(measures),
    }
    write_figures(options.json, figures)
