"""`triolet bench`: press a running server, or one that it starts itself, and show what it took.

Without a URL the server's root is this process, so that nothing outlives the command; its share of
the client's row is some tasks that sleep. Must not know protocols or how figures are made.
"""

import os
import sys
from typing import Any
from urllib.parse import urlsplit

import attrs
import trio
from rich.console import Console

from ...api.commands.plan import make_plan
from ...engine.errors import InvalidParameter
from ...nurseries.error_groups import single_errors_unwrapped
from ...runtime.events import OnEvent
from ...runtime.root import Root
from ...runtime.run_folder import live_runs
from ..figures import check_target, shows_table, write_figures
from .clients.client import Client, Target
from .clients.http import HttpClient, HttpKind
from .clients.lanes import LANES_MAX, LanesClient
from .measures import Measures, measure
from .options import BenchOptions, Protocol
from .report import Bar, print_table
from .runner import Runner
from .schedule import Load

# Prompts of the warm-up are others, so that none of those that count is in the prefix cache.
_WARM_UP_SEED = 1_000_003
# What is cut short when the load is over has nothing in flight.
_GRACE_S = 0.0


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
        tokens=options.tokens,
        seed=options.seed,
        merge_ms=options.merge_ms,
    )
    if options.url:
        target = target_of(options.url, options.api_key)
        pids = [run.facts.pid for run in live_runs() if run.facts.url == options.url.rstrip("/")]
        show(await press(load, target, options, pid=pids[0] if pids else 0), load, options)
        return
    plan = make_plan(
        model,
        engine=engine,
        engines=options.engines,
        frontends=options.frontends,
        model_name="",
        host="127.0.0.1",
        port=0,
        api_keys=(),
        allowed_hosts=(),
        allowed_origins=(),
        grace_s=_GRACE_S,
    )
    with single_errors_unwrapped():
        async with trio.open_nursery() as nursery:
            url = await nursery.start(Root(plan, on_event).run, name="server")
            measures = await press(load, target_of(url, ""), options, pid=os.getpid())
            nursery.cancel_scope.cancel("the load is over")
    show(measures, load, options)


def target_of(url: str, key: str) -> Target:
    """Raises `InvalidParameter` for what is no plain `http://host:port`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError as error:
        raise InvalidParameter("url", f"is wrong: {error}") from error
    if parts.scheme != "http" or not host or parts.path not in ("", "/"):
        raise InvalidParameter("url", f"must be http://host:port, not {url}")
    return Target(host=host, port=port, key=key)


async def press(load: Load, target: Target, options: BenchOptions, *, pid: int) -> Measures:
    """Warm up, then run the load; `pid` is the server's root, 0 if it is not of this machine."""
    if options.warm_up > 0:
        warm_up = attrs.evolve(
            load,
            requests=options.warm_up,
            in_flight=min(load.in_flight, options.warm_up),
            rate=0.0,
            seed=load.seed + _WARM_UP_SEED,
        )
        await make_runner(warm_up, target, options.protocol).run()
    bar = Bar(Console(stderr=True), load.requests)
    with bar.shown():
        runner = make_runner(load, target, options.protocol, pid=pid)
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
