"""Lab for servers on several hosts: the head, the hosts that join it, and clients elsewhere.

Host 1 is the head's, the last one the clients': so a link that is cut between head and hosts is
none of theirs. Every process is the product's own command, its files in a folder for each host, and
each port the same in any lab, as no host is another lab's.
"""

import json
import os
import pathlib
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio

from ...doubles.clients import HttpClient
from ...observers import wait_until
from ...server_process import ServerProcess
from ..clients import Lost, SseConnection, losses
from ..fault_plan import Transport
from ..faults import Void
from ..history import StreamHistory
from ..load import PROMPTS, Script, read_once, read_over
from ..options import PROGRAM
from ..served_run import ServedRun
from . import strangers
from .link_rules import LinkRule, Way
from .virtual_network import VirtualNetwork, open_virtual_network

HEAD = 1
PORT, JOIN_PORT = 8000, 7400
# Long enough for a server that can be reached from elsewhere.
API_KEY = "the-key-of-all-clients-of-a-lab"
# Engines of all hosts boot beside each other on two busy cores.
READY_S = 90.0
# A host drains, and ends its engines by the ladder.
LEAVE_S = 60.0
# Every place may die for ever; one thread computes, as two would wait for each other.
_OPTIONS = ("--restart-limit", "1000000", "--threads", "1")


@attrs.define(eq=False)
class HostLab:
    """Head, hosts and clients. Made by `open_host_lab`."""

    network: VirtualNetwork
    folder: pathlib.Path
    # What Python runs: the command of users, or one that differs where a campaign needs it.
    program: Sequence[str] = PROGRAM
    head: ServedRun = attrs.field(init=False)
    # {host: its process}, the newest one of each.
    joined: dict[int, ServerProcess] = attrs.field(factory=dict, init=False)

    # {host: Python of the build that it has}, where that is not this one.
    pythons: dict[int, str] = attrs.field(factory=dict, init=False)
    # {host: ranks of its engines}, as they were when it joined this head first.
    ranks: dict[int, frozenset[int]] = attrs.field(factory=dict, init=False)

    @property
    def clients(self) -> int:
        """The host of all clients."""
        return self.network.count

    @property
    def others(self) -> Sequence[int]:
        """Hosts that may join the head."""
        return range(HEAD + 1, self.clients)

    async def start(self, *options: str, engines: int = 1) -> None:
        """Start a head with so many engines, and let each other host join with one. `options` are
        the head's. Raises `ServerEnded`, `NotInTime`."""
        await self.make_key()
        join = ("--join-port", str(JOIN_PORT), "--key", str(self.key_file))
        address = ("--advertise", self.network.address(HEAD))
        counts = ("--engines", str(engines), "--frontends", "1")
        if not engines:  # it does not serve before a host is there
            self.start_host(self.others[0])
        await self.start_head(*join, *address, *counts, *options)
        for host in self.others:
            if host not in self.joined:
                await self.wait_ready(len(self.joined) + engines)
                self.start_host(host)
        await self.wait_ready(len(self.joined) + engines)
        await self.note_ranks()

    async def note_ranks(self) -> None:
        """Learn which ranks each host has under this head. Raises `NotInTime`."""
        engines = await self._engines_asked()
        self.ranks = {
            host: frozenset(each["rank"] for each in engines if each.get("host") == name_of(host))
            for host in self.others
        }

    async def epochs(self) -> dict[int, int]:
        """{rank: epoch} of all engines; asked for until there is an answer."""
        return {engine["rank"]: engine["epoch"] for engine in await self._engines_asked()}

    async def _engines_asked(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []

        async def is_answered() -> bool:
            found[:] = await self.engines()
            return bool(found)

        await wait_until(is_answered, "the head says which engines there are", seconds=READY_S)
        return found

    async def start_head(self, *options: str) -> None:
        """Start `triolet serve` with these options, until it serves. Raises `ServerEnded`."""
        address = ("--host", self.network.address(HEAD), "--api-key", API_KEY)
        words = [*self._triolet(HEAD), "serve", *address, *_OPTIONS, *options]
        self.head = ServedRun(words, self._folder(HEAD))
        await self.head.start(PORT)

    @property
    def key_file(self) -> pathlib.Path:
        """Key of the cluster; see `make_key`."""
        return self.folder / "key.json"

    async def make_key(self) -> None:
        """Make the file that lets hosts join."""
        done = ServerProcess([*self._triolet(HEAD), "keygen"], self._folder(HEAD))
        done.spawn(str(self.key_file))
        await wait_until(lambda: done.popen.poll() is not None, "there is a key", seconds=READY_S)

    def start_host(self, host: int) -> None:
        """Start `triolet engine` on a host, which joins the head when it can."""
        head = f"{self.network.address(HEAD)}:{JOIN_PORT}"
        join = ("--join", head, "--key", str(self.key_file), "--name", name_of(host))
        words = [*self._triolet(host), "engine", *join]
        self.joined[host] = ServerProcess(words, self._folder(host))
        self.joined[host].spawn()

    async def engines(self) -> list[dict[str, Any]]:
        """Engines as /health has them; [] if it does not answer."""
        found: list[dict[str, Any]] = json.loads(await self._get("/health") or b'{"engines": []}')[
            "engines"
        ]
        return found

    async def monitored(self) -> dict[str, tuple[str, int]]:
        """{host: its state, and how often it was lost} as /metrics has them."""
        page = (await self._get("/metrics")).decode()
        states = re.findall(r'^triolet_host_state\{host="(\S+)",state="(\w+)"\} 1', page, re.M)
        lost = dict(re.findall(r'^triolet_host_lost_total\{host="(\S+)"\} (\d+)', page, re.M))
        return {host: (state, int(lost[host])) for host, state in states}

    async def _get(self, path: str) -> bytes:
        """The body of an answer; empty if there is none."""
        with trio.move_on_after(1.0):
            try:
                async with self.connection() as connection:
                    headers = {"authorization": f"Bearer {API_KEY}"}
                    http = HttpClient(connection.stream)
                    return (await http.request("GET", path, headers=headers)).body
            except (Lost, OSError, trio.BrokenResourceError):
                pass
        return b""

    async def wait_ready(self, count: int) -> float:
        """Wait until so many engines are ready, and no more are listed; the seconds it took.

        Raises `NotInTime`.
        """

        async def are_ready() -> bool:
            engines = await self.engines()
            return len(engines) == count and all(is_up(each) for each in engines)

        return await wait_until(are_ready, f"{count} engines are ready", seconds=READY_S)

    def kill_root(self) -> int:
        """SIGKILL for the root alone. Its pid."""
        pid = self.head.pid
        os.kill(pid, signal.SIGKILL)
        self.head.popen.wait()
        return pid

    # ---- faults

    def between(self, host: int, other: int = HEAD) -> list[Way]:
        """Both ways of the link of two hosts."""
        return [(host, other), (other, host)]

    async def spoil(self, ways: Sequence[Way], seconds: float, **changes: float | bool) -> str:
        """Change the rule of these ways for so long; the frames that passed and were dropped
        meanwhile, as text. Cancellation: they stay as they are."""
        await self.network.change(ways, **changes)
        before = await self.network.counts()
        await trio.sleep(seconds)
        after = await self.network.counts()
        good = attrs.asdict(LinkRule())
        await self.network.change(ways, **{name: good[name] for name in changes})
        return "; ".join(
            f"{name_of(way[0])} to {name_of(way[1])}: {after[way].passed - before[way].passed}"
            f" frames passed, {after[way].dropped - before[way].dropped} dropped"
            for way in ways
        )

    async def host_off(self, host: int) -> list[int]:
        """Switch a host off: its links fall silent, then all its processes are gone; which."""
        await self.network.cut(self.network.ways(host))
        killed = self.network.kill(host)
        self.joined[host].popen.wait()
        return killed

    def kill_host_process(self, host: int) -> int:
        """SIGKILL for the process that joined; its engines are left to themselves. Its pid."""
        process = self.joined[host]
        os.kill(process.pid, signal.SIGKILL)
        process.popen.wait()
        return process.pid

    async def leave(self, host: int) -> float:
        """SIGTERM for the process that joined; the seconds until it has ended, in order.

        Raises `NotInTime`, `Void` if it ended otherwise.
        """
        popen = self.joined[host].popen
        popen.terminate()
        what = f"{name_of(host)} leaves"
        seconds = await wait_until(lambda: popen.poll() is not None, what, seconds=LEAVE_S)
        if popen.returncode:
            raise Void(f"{name_of(host)} ended with {popen.returncode}: {self.joined[host].log()}")
        return seconds

    async def have_strangers(self, rate: float, seconds: float) -> int:
        """Have strangers come to the door, so many a second, from the head's own host: the switch
        would be busier than the head. How many there were. Raises `NotInTime`."""
        program = [*self.network.words(HEAD), sys.executable, "-m", strangers.__name__]
        (folder := self.folder / "strangers").mkdir(exist_ok=True)
        (log := folder / "log").unlink(missing_ok=True)
        crowd = ServerProcess(program, folder)
        crowd.spawn(self.network.address(HEAD), str(JOIN_PORT), str(rate), str(seconds))
        has_ended = partial(wait_until, lambda: crowd.popen.poll() is not None, "they have left")
        await has_ended(seconds=seconds + READY_S)
        return int(log.read_text())

    # ---- clients

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[SseConnection]:
        """A connection of a client with the head. Raises `Lost`."""
        with await self.network.socket(self.clients) as sock:
            with losses():
                await sock.connect((self.network.address(HEAD), PORT))
            yield SseConnection(trio.SocketStream(sock), API_KEY)

    @asynccontextmanager
    async def streams(
        self, scripts: Sequence[Script], *, comes_back: bool = False
    ) -> AsyncIterator[list[StreamHistory]]:
        """Streams of clients that never come back, or do so by number; the block is left when all
        have ended."""
        now = trio.current_time()
        histories = [
            StreamHistory(f"stream {number}", number, Transport.SSE, now, comes_back=comes_back)
            for number in range(len(scripts))
        ]
        async with trio.open_nursery() as nursery:
            for script, history in zip(scripts, histories, strict=True):
                read = partial(read_once, self.connection(), script.body(), history)
                if comes_back:
                    read = partial(read_over, self.connection, script.body(), history)
                nursery.start_soon(read, name=history.name)
            yield histories

    def close(self) -> None:
        """End all processes; the network's end is that of those that were left to themselves."""
        for host in self.network.hosts:
            self.network.kill(host)
        started = [*self.joined.values(), *([self.head] if hasattr(self, "head") else [])]
        for process in started:
            process.kill()

    def _triolet(self, host: int) -> list[str]:
        if (python := self.pythons.get(host)) is not None:
            return [*self.network.words(host), python, *PROGRAM]
        return [*self.network.words(host), sys.executable, *self.program]

    def _folder(self, host: int) -> pathlib.Path:
        folder = self.folder / name_of(host)
        folder.mkdir(exist_ok=True)
        return folder


@asynccontextmanager
async def open_host_lab(
    folder: pathlib.Path, hosts: int = 3, *, seed: int = 1
) -> AsyncIterator[HostLab]:
    """Hosts without a process, the head's among them, and one more for clients.

    Raises `NoNamespaces`. Afterwards nothing of it is left but what is in `folder`.
    """
    async with open_virtual_network(hosts + 1, seed=seed) as network:
        lab = HostLab(network, folder)
        try:
            yield lab
        finally:
            lab.close()


def name_of(host: int) -> str:
    """Name of a host: "a" is the head's."""
    return chr(ord("a") + host - HEAD)


def is_up(engine: Mapping[str, Any]) -> bool:
    """Whether an engine of /health takes requests."""
    return engine["state"] == "ready" and not engine.get("silent")


def make_scripts(count: int, tokens: int) -> list[Script]:
    """Requests that differ, each with one right answer."""
    return [
        Script(f"{PROMPTS[number % len(PROMPTS)]} Number {number}.", 100 + number, tokens)
        for number in range(count)
    ]


async def wait_tokens(histories: Iterable[StreamHistory], count: int) -> None:
    """Wait until each stream has so many tokens, or has ended. Raises `NotInTime`."""
    await wait_until(
        lambda: all(len(h.token_ids) >= count or h.ending is not None for h in histories),
        f"all streams have {count} tokens",
        seconds=READY_S,
        look_s=0.005,
    )


def differences(
    histories: Sequence[StreamHistory], undisturbed: Sequence[StreamHistory]
) -> list[str]:
    """Streams that are not, to the last token, those of an undisturbed run."""
    return [
        f"{now.name}: {now.ending} {now.code} {now.message}, {len(now.token_ids)} of"
        f" {len(then.token_ids)} tokens"
        for now, then in zip(histories, undisturbed, strict=True)
        if (now.ending, now.token_ids, now.text) != (then.ending, then.token_ids, then.text)
        or now.violations
    ]


def excess_gaps_s(
    histories: Sequence[StreamHistory], undisturbed: Sequence[StreamHistory]
) -> list[float]:
    """Longest silence of each stream, less the longest of any undisturbed one."""
    calm_s = max(history.gap_s for history in undisturbed)
    return sorted(max(0.0, history.gap_s - calm_s) for history in histories)
