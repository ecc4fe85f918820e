"""`triolet bench startup`: from the command to ready, and from a death to ready again; idle CPU.

`triolet serve` as a user starts it, in a folder of its own; engine and frontend are killed as the
kernel would kill them, with spares there to succeed them, or without. Times are of what a client
sees: `/ready`, `/health`.
"""

import os
import pathlib
import signal
import tempfile
import time
from collections.abc import Callable, Sequence

import attrs
import trio

from ...fuzz.chaos.clients import Lost, ask
from ...fuzz.chaos.served_run import ServedRun, open_served_run
from ...fuzz.observers import NotInTime, costs_of_tree, cpu_spent, wait_until
from ..load.measures import Series
from ..options import StartupOptions

ENGINE = "engine 0"
FRONTEND = "frontend 0"
READY = "ready"
# Time for a restart, the backoff before it included.
RESTART_S = 60.0
# Time for which a server is left alone.
IDLE_S, QUICK_IDLE_S = 10.0, 1.0
_OK = 200


@attrs.frozen(kw_only=True)
class StartFigures:
    """Seconds: from the spawn of the command to ready, from the kill to ready again.

    `engine_boot_s` is from the spawn of an engine to its READY, as the server tells it, of the
    engines after a kill: without what supervision waits before it spawns.
    """

    start_s: Series
    restart_s: Series
    frontend_s: Series
    engine_boot_s: Series
    resident_mib: dict[str, float]
    # Cores that all processes use together, spares included, when they have nothing to do.
    idle_cores: Series


async def measure_startup(
    model: str | None,
    options: StartupOptions,
    *,
    words: Sequence[str],
    on_ended: Callable[[int], None] = lambda count: None,
) -> StartFigures:
    """Start, kill, stop, some times; `words` are options of `triolet serve`.

    Raises `Lost` or `NotInTime` of a server that does not come up.
    """
    starts: list[float] = []
    restarts: list[float] = []
    frontends: list[float] = []
    boots: list[float] = []
    resident: dict[str, float] = {}
    idle: list[float] = []
    command = [*([model] if model else []), *words, *options.words_of_spares()]
    for _ in range(options.repeats()):
        with tempfile.TemporaryDirectory(prefix="triolet-start-") as name:
            began_s = time.perf_counter()
            async with open_served_run(pathlib.Path(name), command) as run:
                await wait_until(
                    lambda: is_ok(run.port, "/ready"), "the server is ready", seconds=RESTART_S
                )
                starts.append(time.perf_counter() - began_s)
                await _wait_spares(run, options)
                resident = await _resident(run)
                idle.append(await _idle_cores(run, options))
                restarts.append(await _restart(run))
                boots.append(await _second_boot_s(run))
                await _wait_spares(run, options)
                frontends.append(await _restart_frontend(run))
                on_ended(1)
    return StartFigures(
        start_s=Series.of(starts),
        restart_s=Series.of(restarts),
        frontend_s=Series.of(frontends),
        engine_boot_s=Series.of(boots),
        resident_mib=resident,
        idle_cores=Series.of(idle),
    )


async def _restart(run: ServedRun) -> float:
    """Kill the engine; seconds until another one is ready."""
    epoch, _ = (await run.engine_states())[ENGINE]
    pid = (await run.processes())[ENGINE].pid
    began_s = time.perf_counter()
    os.kill(pid, signal.SIGKILL)

    async def is_back() -> bool:
        try:
            now, state = (await run.engine_states())[ENGINE]
        except (Lost, KeyError):
            return False
        return now > epoch and state == READY

    await wait_until(is_back, "the engine is ready again", seconds=RESTART_S)
    return time.perf_counter() - began_s


async def _second_boot_s(run: ServedRun) -> float:
    """Seconds of the restart by the log; /health may know of an engine before the log does."""
    reported: list[float] = []

    def is_reported() -> bool:
        reported[:] = boot_seconds(run.log())
        return len(reported) > 1

    await wait_until(is_reported, "the log tells of the restart", seconds=RESTART_S)
    return reported[-1]


async def _restart_frontend(run: ServedRun) -> float:
    """Kill the frontend; seconds until `/ready` says that the server is ready."""
    pid = (await run.processes())[FRONTEND].pid
    began_s = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: is_ok(run.port, "/ready"), "the frontend is back", seconds=RESTART_S)
    return time.perf_counter() - began_s


async def _wait_spares(run: ServedRun, options: StartupOptions) -> None:
    """A server has its spares some seconds after its start, and after each restart."""
    count = 2 * options.spares  # for engines and for frontends
    await wait_until(lambda: run.has_spares(count), "spares are warm", seconds=RESTART_S)


async def is_ok(port: int, path: str) -> bool:
    """Whether a server of this machine says 200 there."""
    try:
        status, _ = await ask(port, "GET", path)
    except (Lost, trio.TooSlowError, NotInTime):
        return False
    return status == _OK


async def _idle_cores(run: ServedRun, options: StartupOptions) -> float:
    """Cores that the whole tree uses while it is left alone."""
    before, began_s = costs_of_tree(run.pid), time.perf_counter()
    await trio.sleep(QUICK_IDLE_S if options.quick else IDLE_S)
    spent = cpu_spent(before, costs_of_tree(run.pid))
    return sum(spent.values()) / (time.perf_counter() - began_s)


async def _resident(run: ServedRun) -> dict[str, float]:
    """{place: MiB of memory, shared pages included}."""
    found = await run.quiet_look()
    return {place: look.rss_bytes / 2**20 for place, look in found.places.items()}


def boot_seconds(log: str) -> list[float]:
    """Seconds in the lines "engine 0: ready after 1.2 s" of a log, in their order."""
    marker = f"{ENGINE}: ready after "
    return [
        float(line.partition(marker)[2].partition(" ")[0])
        for line in log.splitlines()
        if marker in line
    ]
