"""Campaign over the server of others: kills of its processes, and what clients lose by them.

Nothing here is a violation, since nothing was promised: it is a measurement. Streams are greedy and
compared with undisturbed ones of the same server, prompts whose undisturbed answers differ are not.
A client that lost its server waits until it serves again.
"""

import itertools
import pathlib
import random
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress

import attrs
import trio

from ....engine.errors import InvalidParameter
from ...observers import NotInTime, wait_until
from .. import faults
from ..clients import Lost, open_stream
from ..fault_plan import Transport
from ..history import Ending, StreamHistory
from ..options import ChaosOptions
from ..report.report import FaultOutcome, Report
from .target_clients import SUCCESS, TargetClient, TargetUrl, ask_target
from .target_run import HEAL_S, LOOK_S, READY_S, TargetRun, open_target

CLIENTS, TOKENS = 8, 96
PROMPTS = (
    "Tell me a story about a fox.",
    "The old lantern went out, and then",
    "Who lives at the end of the lane?",
    "Once upon a time there was a small boat",
)
# Streams are under way for so long before the next kill.
CALM_S = (1.0, 4.0)
STREAM_DEADLINE_S = 120.0
PATHS = ("/completions", "/chat/completions")
ATTEMPTS_MAX = 5


@attrs.define(eq=False)
class TargetCampaign:
    """The state of one campaign."""

    run: TargetRun
    client: TargetClient
    report: Report
    chance: random.Random
    # What each prompt is followed by; none where the server itself does not always say the same.
    answers: Mapping[str, str]
    # So many times longer all may take.
    patience: float = 1.0
    histories: list[StreamHistory] = attrs.field(factory=list, init=False)
    stopping: bool = attrs.field(default=False, init=False)
    # Lives that did not serve again by themselves, though their command ran.
    hopeless: int = attrs.field(default=0, init=False)
    _serving: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def make_faults(self, count: int, until_s: float) -> None:
        """Kill one process after the other, while clients stream. Raises `NotInTime`."""
        self._serving.set()
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(self._run_client, random.Random(f"client {number}"))
            for number in range(count):
                await trio.sleep(self.chance.uniform(*CALM_S))
                if trio.current_time() > until_s:
                    break
                outcome = await self._make_fault(number)
                after = f"it served again after {outcome.recovery_s:.1f} s"
                sys.stderr.write(f"{number + 1} of {count}: {outcome.kind}: {after}\n")
            await trio.sleep(CALM_S[1])
            self.stopping = True
            self._serving.set()

    async def _make_fault(self, number: int) -> FaultOutcome:
        draw = self.chance.random()
        outcome = FaultOutcome(number, "", "")
        for outcome.attempts in range(1, ATTEMPTS_MAX + 1):
            found = self.run.processes()
            if not found:
                raise self.run.ended()
            pid, name = found[int(draw * len(found))]
            outcome.kind, outcome.place = f"kill {name}", ""
            outcome.begin(trio.current_time())
            try:
                outcome.proof = f"{await faults.kill(pid)}, one of {len(found)}"
                outcome.void = ""
                break
            except faults.Void as void:
                outcome.void = str(void)
        self.report.outcomes.append(outcome)
        self._serving = trio.Event()
        await self._heal()
        outcome.until_s = trio.current_time()
        assert outcome.at_s is not None
        outcome.recovery_s = outcome.until_s - outcome.at_s
        self.report.killed += 1
        self._serving.set()
        return outcome

    async def _heal(self) -> None:
        """Until it serves again. Raises `NotInTime`."""
        heal_s = HEAL_S * self.patience
        heal_by_s = trio.current_time() + heal_s
        while not (self.run.is_running and await self.client.serves()):
            is_hopeless = trio.current_time() > heal_by_s
            if is_hopeless or not self.run.is_running:
                self.hopeless += is_hopeless
                await self.run.restart()
                await wait_until(
                    lambda: not self.run.is_running or self.client.serves(),
                    "the server serves again",
                    seconds=READY_S * self.patience,
                    look_s=LOOK_S,
                )
                heal_by_s = trio.current_time() + heal_s
            await trio.sleep(LOOK_S)

    async def _run_client(self, chance: random.Random) -> None:
        while not self.stopping:
            history = await self._stream(chance.choice(PROMPTS))
            if history.ending is not Ending.FINISHED:
                await trio.sleep(LOOK_S)  # that of a kill may not be known yet
                await self._serving.wait()

    async def _stream(self, prompt: str) -> StreamHistory:
        name, now = f"stream {len(self.histories)}", trio.current_time()
        history = StreamHistory(name, PROMPTS.index(prompt), Transport.SSE, now)
        self.histories.append(history)
        with trio.move_on_after(STREAM_DEADLINE_S):
            await self.client.read(prompt, history)
        history.give_up(trio.current_time())
        return history

    def judge(self) -> list[str]:
        """Take all streams in; what they lost, in sentences."""
        self.report.draw_streams(self.histories)
        different = begun = 0
        for history in self.histories:
            if is_different(history, self.answers.get(PROMPTS[history.script])):
                history.code, different = "different", different + 1
            begun += bool(history.text) and history.ending is not Ending.FINISHED
            is_bad = history.code or history.ending is not Ending.FINISHED
            self.report.count_stream(history, self._blame(history) if is_bad else None)
        return [
            f"{len(self.histories)} streams of {CLIENTS} clients: {begun} ended in their midst",
            f"{different} with another text ({len(self.answers)} of {len(PROMPTS)} prompts have one"
            " answer undisturbed)",
            f"started {self.run.starts} times by its command line; {self.run.left_behind}"
            " processes outlived it by a second",
            f"{self.hopeless} times it lived, and did not serve for {HEAL_S * self.patience:g} s",
        ]

    def _blame(self, history: StreamHistory) -> str | None:
        made = [each for each in self.report.outcomes if (each.at_s or 0.0) <= history.ended_s]
        return made[-1].kind if made else None


def is_different(history: StreamHistory, answer: str | None) -> bool:
    """Whether what it said is no part of its answer, from the beginning on."""
    if answer is None:
        return False
    if history.ending is Ending.FINISHED:
        return history.text != answer
    return not answer.startswith(history.text)


async def learn_answers(client: TargetClient) -> dict[str, str]:
    """What it says undisturbed: alone, and with all others at once; what differs is left out.

    Raises `NotInTime` where not even that comes to its end.
    """
    said: dict[str, set[str]] = {prompt: set() for prompt in PROMPTS}

    async def ask(prompt: str) -> None:
        history = StreamHistory(prompt, 0, Transport.SSE, trio.current_time())
        with trio.move_on_after(STREAM_DEADLINE_S):
            await client.read(prompt, history)
        if history.ending is not Ending.FINISHED:
            raise NotInTime(f"{prompt!r} is answered undisturbed: {history.message}", 0.0)
        said[prompt].add(history.text)

    for prompt in PROMPTS:
        await ask(prompt)
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(ask, PROMPTS[number % len(PROMPTS)])
    return {prompt: texts.pop() for prompt, texts in said.items() if len(texts) == 1}


async def find_client(run: TargetRun, url: TargetUrl, options: ChaosOptions) -> TargetClient:
    """Once it serves: its first model, and the path that it has. Raises `NotInTime`, `Lost`."""
    seconds = READY_S * options.patience
    found: list[TargetClient] = []

    async def is_there() -> bool:
        if not run.is_running:
            raise run.ended()
        try:
            status, models = await ask_target(url, "GET", "/models")
        except Lost:
            return False
        if status not in SUCCESS:
            return False
        name = options.target_model or models["data"][0]["id"]
        ways = itertools.product((True, False), PATHS)
        clients = [TargetClient(url, name, path, TOKENS, eos) for eos, path in ways]
        found[:] = [client for client in clients if await client.serves()]
        return bool(found)

    await wait_until(is_there, f"{url} serves", seconds=seconds, look_s=LOOK_S)
    return found[0]


async def run_target(options: ChaosOptions) -> Report:
    """Run it to its end. Raises `Lost`, `NotInTime`, `InvalidParameter`.

    Cancellation: nothing of the server is left.
    """
    url = TargetUrl.of(options.target_url)
    with suppress(Lost):
        async with open_stream(url.port):
            raise InvalidParameter("target_url", "is served already, by what is not the target")
    report = Report(options.seed, "", options.words_of_replay(), target=options.target)
    with tempfile.TemporaryDirectory(prefix="triolet-chaos-") as folder:
        log = pathlib.Path(folder) / "log"
        async with open_target(options.target, log) as run:
            client = await find_client(run, url, options)
            answers = await learn_answers(client)
            report.began_s = trio.current_time()
            chance = random.Random(f"target/{options.seed}")
            campaign = TargetCampaign(run, client, report, chance, answers, options.patience)
            try:
                await campaign.make_faults(options.count, report.began_s + options.most_s())
            finally:
                report.notes = campaign.judge()
    report.seconds = trio.current_time() - report.began_s
    return report
