"""The command line: `python -m triolet.fuzz NAME --seed N`, `smoke`, `canary` and larger programs.

Words to calls, findings to sentences, and nothing else. A program that presses the runtime hooks in
as a command of its own.
"""

import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import trio
from cyclopts import App, Parameter, validators

from ..engine.errors import InvalidParameter
from ..nurseries.tasks.service import single_errors_unwrapped
from .chaos.clients import Lost
from .chaos.options import ChaosOptions
from .contained import Died, go_on_in_child
from .doubles.tcp_client import ServerStuck
from .fuzzer import AnyFuzzer, Finding, NotNoticed, NotReached, run_canary, run_fuzzer, run_round
from .fuzzers import (
    block_pool,
    codec,
    connections,
    frames,
    grammars,
    handshake,
    hosts,
    journal,
    journal_files,
    json,
    ledger,
    links,
    models,
    sampler,
    scheduler,
    simulator,
    supervision,
    takeover,
    templates,
)
from .fuzzers.parsers import bodies, heads, tokenizer, websocket
from .fuzzers.storm import (
    Press,
    ProcessWatch,
    ServerHurt,
    ServerUnknown,
    Storm,
    press_frames,
    press_handshake,
)
from .observers import NotInTime
from .server_process import ServerEnded
from .simulator.planted import render

# The one list of fuzzers: `smoke`, `canary`, the commands and the tests all walk it.
FUZZERS: tuple[AnyFuzzer, ...] = tuple(
    module.FUZZER
    for module in (
        block_pool,
        bodies,
        codec,
        connections,
        frames,
        grammars,
        handshake,
        heads,
        hosts,
        journal,
        journal_files,
        json,
        ledger,
        links,
        models,
        sampler,
        scheduler,
        simulator,
        supervision,
        takeover,
        templates,
        tokenizer,
        websocket,
    )
)
app = App(name="python -m triolet.fuzz", help="Programs that press the runtime.")
# A fixed seed makes `make test` the same for everybody.
SMOKE_SEED = 1
EXIT_FOUND = 1
EXIT_USAGE = 2
CHAOS = ChaosOptions()
EXPECTED = (
    *(Finding, NotReached, NotNoticed, Died),
    simulator.NotRepeatable,
    *(ServerHurt, ServerStuck, ServerUnknown, ServerEnded, Lost, NotInTime),
)

Seed = Annotated[int, Parameter(help="What decides everything that is drawn.")]
# A run of nothing holds always.
AT_LEAST_ONE = validators.Number(gte=1)
Events = Annotated[
    int | None,
    Parameter(help="How many events; without it a smoke run.", validator=AT_LEAST_ONE),
]
Url = Annotated[str, Parameter(help="Press this running server instead; it must be yours.")]
Count = Annotated[
    int,
    Parameter(help="With --url: connections, or frames that were taken.", validator=AT_LEAST_ONE),
]
InFlight = Annotated[
    int, Parameter(help="With --url: connections at a time.", validator=AT_LEAST_ONE)
]
Requests = Annotated[int, Parameter(help="How many requests.", validator=AT_LEAST_ONE)]
Bugs = Annotated[bool, Parameter(help="Plant each known bug instead; each must be found.")]
Kept = Annotated[bool, Parameter(help="With --bugs: write fuzz/simulator/PLANTED.md anew.")]
Only = Annotated[str, Parameter(help="Of modules whose path has this in it.")]
Takeover = Annotated[
    bool,
    Parameter(name="--takeover", help="One frontend and its clients' connections, byte by byte."),
]
Machines = Annotated[bool, Parameter(name="--hosts", help="Several machines, and their faults.")]
Trace = Annotated[bool, Parameter(help="Print what happens in the first seed, and no more.")]
Shrink = Annotated[bool, Parameter(help="Look for the least part of a plan that still fails.")]
Seeds = Annotated[int, Parameter(help="How many, one after the other.", validator=AT_LEAST_ONE)]
Round = Annotated[int | None, Parameter(help="Only this round, as a finding names it.")]


@contextmanager
def findings_as_sentences() -> Iterator[None]:
    """Print a finding and exit with 1."""
    try:
        yield
    except EXPECTED as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_FOUND)


def _command(fuzzer: AnyFuzzer) -> Callable[..., None]:
    def run(*, seed: Seed = SMOKE_SEED, events: Events = None, round: Round = None) -> None:
        _run_fuzzer(fuzzer, seed, events, round)

    run.__doc__ = fuzzer.invariant
    return run


def _run_fuzzer(fuzzer: AnyFuzzer, seed: int, events: int | None, round: int | None) -> None:
    with findings_as_sentences():
        if fuzzer.event_s_max is not None:
            fuzzer = go_on_in_child(fuzzer, seed)
        if round is not None:
            _report(fuzzer, partial(run_round, fuzzer, seed, round, fuzzer.target))
        else:
            _report(fuzzer, partial(run_fuzzer, fuzzer, seed=seed, events=events))


def _report(fuzzer: AnyFuzzer, run: Callable[[], Counter[str]]) -> None:
    started = time.monotonic()
    reached = run()
    what = ", ".join(f"{count} {name}" for name, count in sorted(reached.items()))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    seconds = time.monotonic() - started
    print(f"{fuzzer.name}: held, {seconds:.1f} s, {peak_mib} MiB at most; {what}", flush=True)


def _storm_command(fuzzer: AnyFuzzer, press: Press, count_default: int) -> Callable[..., None]:
    def run(
        *,
        seed: Seed = SMOKE_SEED,
        events: Events = None,
        round: Round = None,
        url: Url = "",
        count: Count = count_default,
        in_flight: InFlight = 32,
    ) -> None:
        if not url:
            _run_fuzzer(fuzzer, seed, events, round)
            return
        with findings_as_sentences():
            storm = Storm(url, count, seed, in_flight, ProcessWatch.of_url(url))
            started = time.monotonic()
            try:
                with single_errors_unwrapped():
                    trio.run(storm.run, press)
            finally:
                print(f"{storm.done} in {time.monotonic() - started:.0f} s", flush=True)
                for name, number in sorted(storm.reached.items()):
                    print(f"  {number:9} {name}")
                if len(storm.watch.samples) > 1:
                    print("\n".join(storm.watch.lines()))
            storm.watch.judge()
            print("it serves, its processes are the same, and their memory is flat")

    run.__doc__ = f"{fuzzer.invariant}; with --url, a running server is pressed"
    return run


STORMS = {"connections": (press_handshake, 100_000), "frames": (press_frames, 1_000_000)}
for _fuzzer in FUZZERS:
    if _fuzzer.name in STORMS:
        app.command(_storm_command(_fuzzer, *STORMS[_fuzzer.name]), name=_fuzzer.name)
    else:
        app.command(_command(_fuzzer), name=_fuzzer.name)


@app.command
def smoke(*, seed: Seed = SMOKE_SEED) -> None:
    """Every fuzzer, briefly; part of the tests."""
    with findings_as_sentences():
        for fuzzer in FUZZERS:
            _report(fuzzer, partial(run_fuzzer, fuzzer, seed=seed))


@app.command
def canary(*, seed: Seed = SMOKE_SEED) -> None:
    """Plant each known fault and demand that its fuzzer notices; part of the tests."""
    with findings_as_sentences():
        for fuzzer in FUZZERS:
            for fault in fuzzer.faults:
                number, error = run_canary(fuzzer, fault, seed=seed)
                how = f"{type(error).__name__} {error}".partition("\n")[0].strip()
                print(f"{fuzzer.name}: {fault}: noticed in round {number}: {how}", flush=True)


@app.command
def kv_accounting(*, requests: Requests = 10_000, seed: Seed = SMOKE_SEED) -> None:
    """End requests in every way there is over a real engine; then every block must be free."""
    from .kv_accounting import account

    started = time.monotonic()
    accounts = trio.run(account, requests, seed)
    print(f"{requests} requests in {time.monotonic() - started:.0f} s")
    print("\n".join(accounts.lines()))
    accounts.judge()
    print("every block is free, nobody holds one, and no abort took more than two steps")


@app.command
def simulate(
    *,
    seeds: Seeds = 1000,
    seed: Seed = SMOKE_SEED,
    bugs: Bugs = False,
    table: Kept = False,
    trace: Trace = False,
    takeovers: Takeover = False,
    machines: Machines = False,
    shrink: Shrink = True,
) -> None:
    """Simulate whole servers in which everything dies, one for each seed; judge every stream."""
    hunt = simulator.HUNT
    if takeovers or machines:
        hunt = takeover.HUNT if takeovers else hosts.HUNT
    with findings_as_sentences():
        if trace:
            for line in simulator.trace_of(seed, hunt):
                print(line, end="")
        elif bugs:
            rows = simulator.find_bugs(seed, partial(print, flush=True), hunt)
            if table:
                hunt.path.write_text(render(rows, seed, hunt))
        else:
            show = partial(print, flush=True)
            campaign = simulator.run_campaign(seeds, seed, hunt, show, shrinks=shrink)
            print("\n".join(campaign.lines()))


@app.command
def mutate(*, seeds: Seeds = 40, only: Only = "") -> None:
    """Invert each comparison of the control plane's numbers in a copy; something must notice."""
    from .simulator.mutations import find_survivors

    for line in find_survivors(seeds, only):
        print(line, flush=True)


@app.command
def chaos(*, options: Annotated[ChaosOptions, Parameter(name="*")] = CHAOS) -> None:
    """Kill, stop, abort and disconnect over a real server; judge all of it from outside."""
    from .chaos.command import run_chaos

    with findings_as_sentences():
        sys.exit(run_chaos(options))


def main(words: list[str] | None = None) -> None:
    """Run what `words`, or the program's arguments, say; a wrong one is a sentence and code 2."""
    try:
        app(words)
    except InvalidParameter as error:
        print(f"--{error.parameter} {error.reason}", file=sys.stderr)
        sys.exit(EXIT_USAGE)


if __name__ == "__main__":
    main()
