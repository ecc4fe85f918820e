"""Kill campaign under the SDK: `triolet serve` under load, processes killed every some seconds.

First the load runs against a server that nothing happens to; its answers are what the other one,
whose processes are killed, must give as well. The server is the user's own command with default
settings, but for how many processes it has and how long it waits for clients. In the end every KV
block must be free, and no request must have been executed twice.
"""

import contextlib
import math
import os
import pathlib
import random
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs
import httpx
import trio

from triolet.fuzz.chaos.campaign import log_violations
from triolet.fuzz.chaos.fault_plan import digest
from triolet.fuzz.chaos.faults import Void, kill
from triolet.fuzz.chaos.history import Violation
from triolet.fuzz.chaos.report.report import Report
from triolet.fuzz.chaos.served_run import ServedRun, open_served_run, serving
from triolet.fuzz.observers import NotInTime, wait_until
from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.runtime.control.client import ControlCallFailed

from ..end_to_end.server import scrape
from .answers import Answer
from .larger_model import write_larger_model
from .load import Load, make_load
from .prefix import check_prefix
from .report import STREAMS_MIN, TOKEN_MAX, TOKEN_MIN, Kill
from .rolling import restart_rolling
from .slots import Account

# For all processes to be there, in the beginning or after a kill, and for enough streams.
WHOLE_S = 120.0
LOOK_S = 0.1
# For the last answers, once no new one is asked for: more than any silence that ends.
LAST_ANSWERS_S = 400.0
# Then for what waits for readers that do not come, `--adopted-keep`, and the engines' next reports.
FREE_S = 100.0
SHOWN = ("engine_", "kv_", "num_requests", "request", "outputs_refused")
# Engines are ahead of clients that read slowly, and what has left the server no kill interrupts:
# wait until one that may die holds as many of the streams as this share, or for `held_s`.
HELD_SHARE, HELD_LOOK_S = 0.3, 0.02
# The clients share their cores with the server: it waits longer than by default for those that are
# late, and keeps for longer what they come back for.
PATIENCE = [
    *("--limits.socket.pong-s", "600", "--limits.socket.write-s", "600"),
    *("--limits.http.head-s", "100", "--limits.http.write-s", "600", "--adopted-keep", "600"),
    *("--wait-target", "0"),
]
WORKER, ENGINE, FRONTEND, HOST = "worker", "engine", "frontend", "host"
FRONTEND_WITH_ENGINE, ROLLING = "frontend with engine", "rolling restart"
KEPT, RESUME = "kept", "resume"


@attrs.frozen(kw_only=True)
class KillOptions:
    """One campaign."""

    engines: int = 2
    frontends: int = 1
    # The head's included, of a campaign of hosts.
    hosts: int = 3
    kills: int = 200
    # Rolling restarts, in place of kills.
    rounds: int = 0
    # Kills that met too few streams are made again, so many in all at most.
    attempts: int = 3
    # Kinds of process, killed in turn.
    victims: tuple[str, ...] = (ENGINE, WORKER)
    # Whether connections must not break, or clients resume by number where they do.
    connections: str = KEPT
    period_s: float = 2.0
    # After so many, no kill is made.
    minutes: float = math.inf
    held_s: float = 10.0
    # A kill counts that meets so many streams in their midst.
    streams_min: int = STREAMS_MIN
    lanes: int = 64
    sockets: int = 4
    # One half chats, the other streamed responses.
    streams: int = 16
    tokens: int = 200
    seed: int = 1
    # Of a model of random weights in place of the bundled one; 0: the bundled one.
    layers: int = 0
    # More words for the server, beyond how many engines and frontends it has.
    serve: tuple[str, ...] = ()

    def load(self, url: str, expected: Mapping[str, Answer] | None) -> Load:
        """The load of this campaign."""
        return make_load(
            url,
            Account(expected, comes_back=self.connections == RESUME and expected is not None),
            tokens=self.tokens,
            lanes=self.lanes,
            sockets=self.sockets,
            streams=self.streams,
        )

    def words_of_replay(self) -> list[str]:
        """The command again."""
        words = ["python", "-m", "tests.kills"]
        for field in attrs.fields(KillOptions):
            value = getattr(self, field.name)
            if value != field.default:
                values = value if isinstance(value, tuple) else [value]
                words += [f"--{field.name.removesuffix('_s')}", *map(str, values)]
        return words

    @property
    def streams_wanted(self) -> int:
        """Streams to wait for: some end between a look and a kill."""
        return self.streams_min + 1

    @property
    def ends_engines(self) -> bool:
        """Whether engines end, and what they counted."""
        return self.rounds > 0 or any(ENGINE in victim for victim in self.victims)


async def run_kills(options: KillOptions, say: Callable[[str], object]) -> Report:
    """Both servers, one after the other.

    Raises `ServerEnded` or `NotInTime` if one does not come up, `AssertionError` if it serves badly
    with nothing done to it. Cancellation: no process is left.
    """
    report = Report(options.seed, digest([options]), options.words_of_replay())
    began_s = trio.current_time()
    async with _open_run(options) as (served, _):
        oracle = options.load(served.url, None)
        await oracle.run()
        expected = oracle.account
        assert not expected.wrong, f"the undisturbed server: {expected.wrong[:3]}"
        prefixes = await check_prefix(served.url, trio.lowlevel.checkpoint)
    say(f"{expected.compared} answers of the undisturbed server in {_since(began_s):.0f} s")
    async with _open_run(options) as (served, places):
        load = options.load(served.url, expected.recorded)
        campaign = Campaign(options, served, places, load, report, say)
        report.began_s = trio.current_time()
        await campaign.run()
        report.seconds = _since(report.began_s)
        if not report.violations:
            await campaign.check_free()
        if not report.violations and options.connections == KEPT:
            await campaign.check_prefix(prefixes)
        campaign.fill_report()
        report.violations += log_violations(served.log())
    return report


@asynccontextmanager
async def _open_run(options: KillOptions) -> AsyncIterator[tuple[ServedRun, list[str]]]:
    """A server, whole, and the places of its tree; spares and what they started are no part."""
    words = ["--engines", str(options.engines), "--frontends", str(options.frontends)]
    words += [*PATIENCE, *options.serve]
    if options.connections == RESUME and not options.rounds:
        words.append("--no-takeover")
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


def _since(began_s: float) -> float:
    return trio.current_time() - began_s


@attrs.define(eq=False)
class Campaign:
    """The kills of one run, under its load."""

    options: KillOptions
    served: ServedRun
    places: Sequence[str]
    load: Load
    report: Report
    say: Callable[[str], object]
    kills: list[Kill] = attrs.field(factory=list, init=False)
    # Requests that frontends sent again to engines, and what engines took in.
    _replays: int = attrs.field(default=0, init=False)
    _added: int = attrs.field(default=0, init=False)

    def counted(self, kind: str = "") -> list[Kill]:
        """Kills that met enough streams, of one kind of process or all."""
        return [kill for kill in self.kills if kill.counts and kind in ("", kill.kind)]

    async def run(self) -> None:
        """All kills; return when the last answers are there."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_load, nursery.cancel_scope)
            try:
                await (self._roll_all() if self.options.rounds else self._kill_all())
            except NotInTime as late:
                self._break(str(late))
            finally:
                with contextlib.suppress(NotInTime):
                    await self._end_load()

    def _break(self, evidence: str) -> None:
        self.report.violations.append(Violation("I8", evidence))

    def fill_report(self) -> None:
        """All that was seen; silences are known when the load has ended."""
        account, report, slots = self.load.account, self.report, self.load.slots
        report.outcomes = [kill.outcome(number) for number, kill in enumerate(self.kills)]
        report.gaps_at_faults_s = [gap for kill in self.kills for gap in kill.bystander_gaps_s]
        report.endings["answered"], report.tokens = account.compared, account.output_tokens
        report.checks["I2"] = account.compared
        report.resumed = sum(slot.breaks > 0 for slot in slots)
        report.returns = sum(slot.breaks for slot in slots)
        wrong = account.wrong if account.compared else ["no answer was compared"]
        report.violations += [Violation("I2", each) for each in wrong]
        asked, again = self.load.asked()
        executed = "?" if self.options.ends_engines else self._added
        report.notes = [
            f"requests: {asked}, of them {again} sent again by clients, {self._replays} by"
            f" frontends; {executed} executed;"
            f" {sum(slot.refusals for slot in slots)} refusals that asked to come again"
        ]

    async def _run_load(self, scope: trio.CancelScope) -> None:
        await self.load.run()
        if not self.load.account.stopping:
            self._break("the load ended by itself")
            scope.cancel("there is no load")

    async def _end_load(self) -> None:
        """Threads end with their streams, or with the server. Raises `NotInTime`."""
        self.load.account.stopping = True
        try:
            await wait_until(self._has_last_answers, "the last answers", seconds=LAST_ANSWERS_S)
        except (NotInTime, trio.Cancelled):
            self._give_up()
            raise

    def _has_last_answers(self) -> bool:
        return all(slot.answer is not None and slot.answer.ended for slot in self.load.slots)

    def _give_up(self) -> None:
        """Name what hangs, and end it with the server."""
        self.load.account.comes_back = False
        for slot in self.load.slots:
            if slot.answer is not None and not slot.answer.ended:
                tokens = slot.answer.tokens
                self._break(f"{slot.name}: no end after {tokens} tokens")
        os.kill(self.served.pid, signal.SIGKILL)

    def _wrong_so_far(self) -> str:
        """How many, and the last one."""
        wrong = self.load.account.wrong
        return f"wrong so far {len(wrong)}" + (f", the last one {wrong[-1]:.300}" if wrong else "")

    # ---- rolling restarts

    async def _roll_all(self) -> None:
        for number in range(self.options.rounds):
            processes = await self._wait_ready(FRONTEND)
            held = sum(_held(processes, place) for place in self._candidates(FRONTEND))
            made = Kill(ROLLING, "", self._in_the_midst(""), held, hit=set())
            made.began_s = trio.current_time()
            self.kills.append(made)
            self._watch(made)
            code, said = await restart_rolling(self.served)
            made.proof, made.recovery_s = f"exit code {code}", _since(made.began_s)
            if code:
                self._break(f"rolling restart {number}: exit code {code}: {said}")
            self.say(
                f"{number + 1}/{self.options.rounds} {ROLLING}: {made.in_the_midst} in the midst,"
                f" {made.interrupted} cut off, {made.recovery_s:.1f} s, {self._wrong_so_far()}"
            )
        self._watch(None)

    # ---- kills

    async def _kill_all(self) -> None:
        chance = random.Random(self.options.seed)
        began_s = trio.current_time()
        next_s = began_s + self.options.period_s
        for _ in range(self.options.kills * self.options.attempts):
            is_late = trio.current_time() > began_s + 60 * self.options.minutes
            if is_late or len(self.counted()) == self.options.kills:
                break
            await trio.sleep_until(next_s)
            victims = self.options.victims
            victim = min(victims, key=lambda kind: len(self.counted(kind)))
            processes = await self._wait_ready(victim)
            next_s = trio.current_time() + self.options.period_s
            await self._kill(victim, processes, chance)
        await trio.sleep_until(next_s)
        self._watch(None)

    async def _wait_ready(self, victim: str) -> Mapping[str, ProcessTree]:
        """The tree when all is there, and enough streams are in their midst. Raises `NotInTime`."""
        await self._wait_whole()
        await wait_until(
            lambda: (
                max(map(self._in_the_midst, self._candidates(victim)))
                >= self.options.streams_wanted
            ),
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
            return max(_held(processes, place) for place in self._candidates(victim)) >= wanted

        with contextlib.suppress(NotInTime):
            await wait_until(
                is_held, f"a {victim} holds enough", seconds=self.options.held_s, look_s=HELD_LOOK_S
            )
        return processes

    def _candidates(self, victim: str) -> list[str]:
        """The places of which one is to be hit."""
        kind = FRONTEND if FRONTEND in victim else ENGINE
        return [place for place in self.places if place.startswith(kind) and "/" not in place]

    async def _wait_whole(self, *gone: int) -> None:
        await wait_until(
            lambda: self.served.is_whole(self.places, gone),
            f"all of {', '.join(self.places)} are there",
            seconds=WHOLE_S,
            look_s=LOOK_S,
        )

    def _in_the_midst(self, place: str) -> int:
        """Streams that count; if a frontend dies, its own."""
        answers = [slot.answer for slot in self.load.slots if slot.is_under_way]
        return sum(
            TOKEN_MIN <= answer.tokens <= TOKEN_MAX
            for answer in answers
            if answer and (FRONTEND not in place or place == f"{FRONTEND} {answer.frontend}")
        )

    async def _kill(
        self, victim: str, processes: Mapping[str, ProcessTree], chance: random.Random
    ) -> None:
        # One that has just come back has few streams: the more it has, the likelier it is.
        held = {place: _held(processes, place) for place in self._candidates(victim)}
        weights = [(1 + held[place]) * (1 + self._in_the_midst(place)) for place in held]
        (chosen,) = chance.choices(list(held), weights)
        places = [f"{chosen}/{WORKER} 0" if victim == WORKER else chosen]
        if victim == FRONTEND_WITH_ENGINE:
            places.append(chance.choice(self._candidates(ENGINE)))
        made = Kill(" with ".join(places), "", self._in_the_midst(chosen), held[chosen])
        made.began_s, made.streams_min = trio.current_time(), self.options.streams_min
        if FRONTEND in victim:
            made.hit = self._streams_of(chosen) if self.options.connections == KEPT else set()
        self._watch(made)
        try:
            pids = [processes[place].pid for place in places]
            made.proof = await kill(*pids)
        except (Void, KeyError) as void:
            self.say(f"no kill: {made.place}: {void}")
            return
        self.kills.append(made)
        await self._wait_whole(*pids)
        made.recovery_s = _since(made.began_s)
        self.say(
            f"{len(self.counted())}/{self.options.kills} {made.place}: {made.in_the_midst}"
            f" in the midst, {made.interrupted} interrupted, whole after {made.recovery_s:.2f} s,"
            f" {self._wrong_so_far()}"
        )

    def _streams_of(self, frontend: str) -> set[str]:
        return {
            slot.name
            for slot in self.load.slots
            if slot.answer
            and slot.is_under_way
            and f"{FRONTEND} {slot.answer.frontend}" == frontend
        }

    def _watch(self, kill: Kill | None) -> None:
        """From now on silences are noted here."""
        for slot in self.load.slots:
            slot.watch(kill)

    # ---- afterwards

    async def check_free(self) -> None:
        """Every KV block is free again, and engines took in no request twice.

        But for what clients sent again, as no event of it had come, and what a frontend sent again
        with the tokens so far, as its engine had given it up.
        """
        counts = dict[str, float]()
        asked, again = self.load.asked()

        async def is_free() -> bool:
            async with httpx.AsyncClient(base_url=self.load.url) as client:
                counts.update(await scrape(client))
            total, free = _sum(counts, "kv_blocks{"), _sum(counts, "kv_blocks_free{")
            self._added = round(_sum(counts, "engine_requests_added"))
            self._replays = round(_sum(counts, "request_replays"))
            busy = sum(_sum(counts, f"num_requests_{kind}{{") for kind in ("running", "waiting"))
            # The counts of engines that died are lost.
            is_added_right = self.options.ends_engines or (
                0 <= self._added - asked <= again + self._replays
            )
            return 0 < total == free and not busy and is_added_right

        try:
            await wait_until(is_free, "all is free", seconds=FREE_S, look_s=LOOK_S)
        except NotInTime as late:
            kept = {
                name: count for name, count in counts.items() if "kv_bl" in name or "_req" in name
            }
            evidence = f"{late}, with {asked} requests asked for, {again} sent again: {kept}"
            self.report.violations.append(Violation("I4", evidence))

    async def check_prefix(self, expected: list[Answer]) -> None:
        """A long prefix that is in a cache whose worker dies: asked for again, it is the same."""
        workers = [place for place in self.places if WORKER in place]

        async def kill_next() -> None:
            if workers:
                await self._wait_whole()
                await kill((await self.served.processes())[workers.pop()].pid)

        seen = await check_prefix(self.served.url, kill_next)
        for number, (answer, right) in enumerate(zip(seen, expected, strict=True)):
            if answer != right:
                evidence = f"answer {number}: {answer!r:.200}, not {right!r:.200}"
                self.report.violations.append(Violation("I2", f"1000 tokens before it, {evidence}"))


def _held(processes: Mapping[str, ProcessTree], place: str) -> int:
    """How many requests this engine or frontend has."""
    process = processes.get(place)
    facts = process.facts if process is not None else {}
    return sum(int(facts.get(name, 0)) for name in ("running", "waiting", "requests"))


def _sum(counts: Mapping[str, float], prefix: str) -> float:
    return sum(count for name, count in counts.items() if name.startswith(prefix))
