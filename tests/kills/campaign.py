"""Kill campaign: `triolet serve` under load, an engine or a worker killed every some seconds.

First the load runs against a server that nothing happens to; its answers are what the other one,
whose processes are killed, must give as well. The server is the user's own command with default
settings, but for how many engines it has.
"""

import contextlib
import os
import pathlib
import random
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from triolet.fuzz.chaos.faults import Void, kill
from triolet.fuzz.chaos.served_run import ServedRun, open_served_run, serving
from triolet.fuzz.observers import NotInTime, wait_until
from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.runtime.processes.control_server import ControlCallFailed

from .answers import Answer
from .larger_model import write_larger_model
from .load import Load, make_load
from .prefix import check_prefix
from .report import STREAMS_MIN, TOKEN_MAX, TOKEN_MIN, Kill, KillReport

# For all processes to be there, in the beginning or after a kill, and for enough streams.
WHOLE_S = 60.0
LOOK_S = 0.1
# For the last answers, once no new one is asked for: more than any silence that ends.
LAST_ANSWERS_S = 90.0
# Some end between this look and the kill.
STREAMS_WANTED = STREAMS_MIN + 1
# Engines are ahead of clients that read slowly, and what has left the engine no kill interrupts:
# wait until one of them holds as many of the streams as this share, or for `held_s`.
HELD_SHARE, HELD_LOOK_S = 0.3, 0.02
WORKER, ENGINE = "worker", "engine"


@attrs.frozen(kw_only=True)
class KillOptions:
    """One campaign."""

    engines: int = 2
    kills: int = 200
    # Kills that met too few streams are made again, so many in all at most.
    attempts: int = 3
    victims: tuple[str, ...] = (ENGINE, WORKER)
    period_s: float = 2.0
    held_s: float = 10.0
    lanes: int = 64
    sockets: int = 4
    chats: int = 16
    tokens: int = 200
    seed: int = 1
    # Of a model of random weights in place of the bundled one; 0: the bundled one.
    layers: int = 0
    # More words for the server, beyond how many engines it has.
    serve: tuple[str, ...] = ()

    def load(self, url: str, expected: dict[str, Answer] | None) -> Load:
        """The load of this campaign."""
        return make_load(
            url,
            tokens=self.tokens,
            lanes=self.lanes,
            sockets=self.sockets,
            chats=self.chats,
            expected=expected,
        )


async def run_kills(options: KillOptions, say: Callable[[str], object]) -> KillReport:
    """Both servers, one after the other.

    Raises `Lost` or `NotInTime` if one does not come up, `AssertionError` if it serves badly with
    nothing done to it. Cancellation: no process is left.
    """
    report = KillReport(options.engines)
    began_s = time.monotonic()
    async with _open_run(options) as (served, _):
        oracle = options.load(_url(served), None)
        await oracle.run()
        assert not oracle.wrong, f"the undisturbed server: {oracle.wrong[:3]}"
        prefixes = await check_prefix(_url(served), trio.lowlevel.checkpoint)
    say(f"{oracle.compared} answers of the undisturbed server in {_since(began_s):.0f} s")
    async with _open_run(options) as (served, places):
        load = options.load(_url(served), oracle.recorded)
        campaign = Campaign(options, served, places, load, report, say)
        began_s = time.monotonic()
        await campaign.run()
        report.seconds = _since(began_s)
        if not report.broken:
            report.broken += await campaign.check_prefix(prefixes)
        report.broken += [
            f"the log has {word!r}: {line[:200]}"
            for line in served.log().splitlines()
            for word in ("Traceback", "given up")
            if word in line
        ]
    return report


@asynccontextmanager
async def _open_run(options: KillOptions) -> AsyncIterator[tuple[ServedRun, list[str]]]:
    """A server, whole, and the places of its tree; spares and what they started are no part."""
    words = ["--engines", str(options.engines), *options.serve]
    with tempfile.TemporaryDirectory(prefix="triolet-kills-") as folder:
        if options.layers:
            words += write_larger_model(pathlib.Path(folder) / "model", options.layers)
        async with open_served_run(pathlib.Path(folder), words) as served:
            places: list[str] = []

            async def has_workers() -> bool:
                places[:] = list(serving(await served.processes()))
                workers = [place for place in places if place.endswith("/worker 0")]
                return len(workers) == options.engines and await served.is_whole(places)

            await wait_until(has_workers, "every engine has a worker", seconds=WHOLE_S)
            yield served, places


def _url(served: ServedRun) -> str:
    return f"http://127.0.0.1:{served.port}"


def _since(began_s: float) -> float:
    return time.monotonic() - began_s


@attrs.define(eq=False)
class Campaign:
    """The kills of one run, under its load."""

    options: KillOptions
    served: ServedRun
    places: Sequence[str]
    load: Load
    report: KillReport
    say: Callable[[str], object]

    async def run(self) -> None:
        """All kills; return when the last answers are there. Fills the report."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_load, nursery.cancel_scope)
            try:
                await self._kill_all()
            except NotInTime as late:
                self.report.broken.append(str(late))
            finally:
                with contextlib.suppress(NotInTime):
                    await self._end_load()
        self.report.compared = self.load.compared
        self.report.output_tokens = self.load.output_tokens
        self.report.wrong += self.load.wrong

    async def _run_load(self, scope: trio.CancelScope) -> None:
        await self.load.run()
        if not self.load.stopping:
            self.report.broken.append("the load ended by itself")
            scope.cancel("there is no load")

    async def _end_load(self) -> None:
        """Threads end with their streams, or with the server. Raises `NotInTime`."""
        self.load.stopping = True
        try:
            await wait_until(self._has_last_answers, "the last answers", seconds=LAST_ANSWERS_S)
        except (NotInTime, trio.Cancelled):
            self._give_up()
            raise

    def _has_last_answers(self) -> bool:
        return all(slot.answer is not None and slot.answer.ended for slot in self.load.slots)

    def _give_up(self) -> None:
        """Name what hangs, and end it with the server."""
        for slot in self.load.slots:
            if slot.answer is not None and not slot.answer.ended:
                tokens = slot.answer.tokens
                self.report.broken.append(f"{slot.name}: no end after {tokens} tokens")
        os.kill(self.served.pid, signal.SIGKILL)

    # ---- kills

    async def _kill_all(self) -> None:
        chance = random.Random(self.options.seed)
        next_s = trio.current_time() + self.options.period_s
        for _ in range(self.options.kills * self.options.attempts):
            if len(self.report.counted()) == self.options.kills:
                break
            await trio.sleep_until(next_s)
            processes = await self._wait_ready()
            next_s = trio.current_time() + self.options.period_s
            victims = self.options.victims
            victim = min(victims, key=lambda kind: len(self.report.counted(kind)))
            await self._kill(victim, processes, chance)
        await trio.sleep_until(next_s)
        self._watch({})

    async def _wait_ready(self) -> Mapping[str, ProcessTree]:
        """The tree when all is there, and enough streams are in their midst. Raises `NotInTime`."""
        await self._wait_whole()
        await wait_until(
            lambda: self._in_the_midst() >= STREAMS_WANTED,
            "enough streams are under way",
            seconds=WHOLE_S,
            look_s=LOOK_S,
        )
        wanted = HELD_SHARE * len(self.load.slots)
        processes: Mapping[str, ProcessTree] = {}

        async def is_held() -> bool:
            nonlocal processes
            try:
                processes = await self.served.processes()
            except ControlCallFailed:
                return False
            return max(map(partial(_held, processes), range(self.options.engines))) >= wanted

        with contextlib.suppress(NotInTime):
            await wait_until(
                is_held, "an engine holds enough", seconds=self.options.held_s, look_s=HELD_LOOK_S
            )
        return processes

    async def _wait_whole(self, *gone: int) -> None:
        await wait_until(
            lambda: self.served.is_whole(self.places, gone),
            f"all of {', '.join(self.places)} are there",
            seconds=WHOLE_S,
            look_s=LOOK_S,
        )

    def _in_the_midst(self) -> int:
        answers = [slot.answer for slot in self.load.slots if slot.is_under_way]
        return sum(TOKEN_MIN <= answer.tokens <= TOKEN_MAX for answer in answers if answer)

    async def _kill(
        self, victim: str, processes: Mapping[str, ProcessTree], chance: random.Random
    ) -> None:
        # One that has just come back has few streams: the more an engine has, the likelier it is.
        held = {f"engine {rank}": _held(processes, rank) for rank in range(self.options.engines)}
        (engine,) = chance.choices(list(held), [1 + count for count in held.values()])
        place = f"{engine}/worker 0" if victim == WORKER else engine
        made = Kill(place, "", self._in_the_midst(), held[engine])
        self._watch(made.gaps)
        began_s = trio.current_time()
        try:
            made.proof = await kill(processes[place].pid)
        except (Void, KeyError) as void:
            self.say(f"no kill: {place}: {void}")
            return
        self.report.kills.append(made)
        await self._wait_whole(processes[place].pid)
        made.recovery_s = trio.current_time() - began_s
        self.say(
            f"{len(self.report.counted())}/{self.options.kills} {place}: {made.in_the_midst} in"
            f" the midst, {made.interrupted} interrupted, whole after {made.recovery_s:.2f} s,"
            f" wrong so far {len(self.load.wrong)}"
        )

    def _watch(self, gaps: dict[str, float]) -> None:
        """From now on silences are noted here."""
        for slot in self.load.slots:
            slot.watch(gaps)

    async def check_prefix(self, expected: list[Answer]) -> list[str]:
        """A long prefix that is in a cache whose worker dies: asked for again, it is the same."""
        workers = [place for place in self.places if WORKER in place]

        async def kill_next() -> None:
            if workers:
                await self._wait_whole()
                await kill((await self.served.processes())[workers.pop()].pid)

        seen = await check_prefix(_url(self.served), kill_next)
        return [
            f"prefix of 1000 tokens, answer {number}: {answer!r:.200}, not {right!r:.200}"
            for number, (answer, right) in enumerate(zip(seen, expected, strict=True))
            if answer != right
        ]


def _held(processes: Mapping[str, ProcessTree], rank: int) -> int:
    """How many requests this engine has."""
    engine = processes.get(f"engine {rank}")
    facts = engine.facts if engine is not None else {}
    return int(facts.get("running", 0)) + int(facts.get("waiting", 0))
