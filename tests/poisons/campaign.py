"""One poison against one server, with streams beside it: what is sent, compared and counted."""

import json
import pathlib
import statistics
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import attrs
import httpx
import trio

from triolet.fuzz.chaos.poisoned_forms import FormPoison
from triolet.fuzz.chaos.poisoned_frontend import FrontendPoison

from ..end_to_end.server import Server, open_chaos_server, wait_until
from .sending import COMPLETIONS, send_poison

STREAMS = 8
TOKENS = 200
STORY: Mapping[str, Any] = {
    "prompt": "Tell me a story about a fox.",
    "max_tokens": TOKENS,
    "stream": True,
    "runtime": {"ignore_eos": True},
}
# Before the first turn: caches fill, spares start.
WARM_UP_S = 3.0
# Between two poisons: a client in a loop takes a core of two for itself, whatever it sends.
PAUSE_S = 0.1
# What the root logs; frontends have the words behind an epoch.
ABORTED = " 0: was killed by SIGABRT"
DEATHS_MAX = 2
RATIO_GOAL = 1.5


@attrs.frozen
class PoisonOptions:
    """Length of the whole, of a turn without and with the poison, and of one poison (0: for ever).

    A turn ends as well when so many poisons were answered (0: by its time alone).
    """

    seconds: float = 600.0
    turn_s: float = 10.0
    vary_s: float = 0.0
    calm_s: float = 10.0
    poisons: int = 0


@attrs.define
class Report:
    """What the streams saw, by whether the poison was sent meanwhile."""

    gaps_s: dict[bool, list[float]] = attrs.field(factory=lambda: defaultdict(list))
    firsts_s: dict[bool, list[float]] = attrs.field(factory=lambda: defaultdict(list))
    streams: int = 0
    different: int = 0
    poisons: int = 0
    sent: int = 0
    deaths: int = 0
    # What was answered to a poison, but for refusals of it.
    wrong: list[str] = attrs.field(factory=list)

    @property
    def is_green(self) -> bool:
        """Whether the poison cost what it may, and nobody else anything but time."""
        is_bounded = self.deaths <= DEATHS_MAX * self.poisons
        return is_bounded and self.streams > 0 and not self.different and not self.wrong

    def line(self) -> str:
        """Everything, for a person."""
        return (
            f"{'green' if self.is_green else 'RED'}; {self.sent} times {self.poisons} poisons,"
            f" {self.deaths} deaths; {self.streams} streams, {self.different} different;"
            f" gaps {_compared(self.gaps_s)}; first tokens {_compared(self.firsts_s)}"
            + "".join(f"\n  {text}" for text in self.wrong[:3])
        )


def _compared(seconds: Mapping[bool, list[float]]) -> str:
    if min(len(seconds.get(is_on, ())) for is_on in (False, True)) < 2:
        return "too few"
    off, on = (
        statistics.quantiles(seconds[is_on], n=100, method="inclusive")[98] * 1000
        for is_on in (False, True)
    )
    held = "" if on <= RATIO_GOAL * off else f", over {RATIO_GOAL}"
    return f"p99 {off:.1f} ms without, {on:.1f} with: {on / off:.2f} times{held}"


@attrs.define(eq=False)
class Campaign:
    """One place's. `run` is called once."""

    folder: pathlib.Path
    poison: FormPoison | FrontendPoison
    options: PoisonOptions
    report: Report = attrs.field(factory=Report, init=False)
    # The poison is sent now.
    _is_on: bool = attrs.field(default=False, init=False)
    _texts: dict[int, str] = attrs.field(factory=dict, init=False)

    async def run(self) -> Report:
        """All turns. Raises what a stream raises that was cut or refused."""
        async with open_chaos_server(self.folder) as server, server.client() as client:
            for seed in range(STREAMS):
                self._texts[seed] = await self._read(client, seed)
            self.report = Report()
            async with trio.open_nursery() as nursery:
                for seed in range(STREAMS):
                    nursery.start_soon(self._keep_reading, client, seed)
                await trio.sleep(WARM_UP_S)
                self.report.gaps_s.clear()
                self.report.firsts_s.clear()
                await self._take_turns(server)
                nursery.cancel_scope.cancel("time is over")
            await wait_until(server.is_ready, "the server is up")  # it may come back from the last
            self.report.deaths = server.log().count(ABORTED)
        return self.report

    async def _take_turns(self, server: Server) -> None:
        ends = trio.current_time() + self.options.seconds
        while trio.current_time() < ends:
            self._is_on = False
            await trio.sleep(self.options.calm_s)
            self._is_on = True
            async with server.client() as client:
                with trio.move_on_after(self.options.turn_s):
                    await self._poison(client)

    async def _poison(self, client: httpx.AsyncClient) -> None:
        """Send it as often as it is answered, and a new one now and then."""
        began_s = trio.current_time()
        while not self.options.poisons or self.report.poisons < self.options.poisons:
            await trio.sleep(PAUSE_S)
            vary_s = self.options.vary_s
            if not self.report.poisons or (vary_s and trio.current_time() > began_s + vary_s):
                self.report.poisons += 1
                began_s = trio.current_time()
            text = f"{self.poison} {self.report.poisons}"
            answer = await send_poison(client, self.poison, text)
            self.report.sent += 1
            if not answer.is_refusal:
                self.report.wrong.append(str(answer))

    async def _keep_reading(self, client: httpx.AsyncClient, seed: int) -> None:
        while True:
            text = await self._read(client, seed)
            self.report.streams += 1
            self.report.different += text != self._texts[seed]

    async def _read(self, client: httpx.AsyncClient, seed: int) -> str:
        """One stream's text. Raises `AssertionError` if it has no end."""
        text, before_s, is_first, is_whole = "", trio.current_time(), True, False
        body = {**STORY, "seed": seed}
        async with client.stream("POST", COMPLETIONS, json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                data = line.removeprefix("data: ")
                is_whole |= data == "[DONE]"
                if not data or is_whole:
                    continue
                text += json.loads(data)["choices"][0]["text"]
                now = trio.current_time()
                waits = self.report.firsts_s if is_first else self.report.gaps_s
                waits[self._is_on].append(now - before_s)
                before_s, is_first = now, False
        assert is_whole, text
        return text
