"""Coding agents on a task while processes of their server are killed, an engine in each turn.

An agent has its default settings but for address and key, and leave to write. What it recorded of
the model's answers must be the script, word for word; the task must be done; and the server must
have had one request for each turn: an agent that lost its stream would have asked again.
"""

import json
import os
import pathlib
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import attrs
import httpx
import trio

from triolet.fuzz.chaos.faults import kill
from triolet.fuzz.observers import PROC, children_of
from triolet.nurseries.processes.title import PREFIX

from ..end_to_end.server import DEADLINE_S, Server, scrape, wait_until
from .agent_tasks import PROGRAM, QUESTION, RIGHT, SOURCE, TASKS, WRONG, Said

TASK_S = 4 * DEADLINE_S
LOOK_S = 0.01
ENGINE, FRONTEND = f"{PREFIX}engine 0", f"{PREFIX}frontend 0"
# Turns in which the frontend dies as well, in the same millisecond.
BOTH_DIE = {1, 3}
# What is compared before and after a task: counters of the server.
ASKED, REPLAYED, LOST = "requests_total", "request_replays_total", "connections_lost_total"
FAILED, ABORTED = "requests_failed_total", "requests_aborted_total"
TAKEN_OVER = "connections_taken_over_total"
# What agents print when they lost a stream.
RECONNECT = re.compile(rb"Reconnecting|api_retry")
# In flight, and prompt tokens of those without a first token.
ACTIVE, QUEUED = "requests_active", "queued_tokens"


@attrs.frozen(kw_only=True)
class Agent:
    """One agent. `command` has the question appended; `record` reads what it has recorded."""

    name: str
    package: str
    task: str
    command: list[str]
    environ: Mapping[str, str] = MappingProxyType({})
    record: Callable[[str], list[Said]]
    # Requests beside those of the turns.
    more_requests: int = 0


@attrs.define(eq=False)
class AgentRun:
    """One agent at its task, and the kills."""

    agent: Agent
    server: Server
    folder: pathlib.Path
    kills: list[str] = attrs.field(factory=list, init=False)
    _client: httpx.AsyncClient = attrs.field(init=False)
    _before: Mapping[str, float] = attrs.field(factory=dict, init=False)

    async def run(self) -> tuple[bool, str]:
        """Whether it went well, and what there is to say."""
        (self.folder / PROGRAM).write_text(SOURCE)
        async with self.server.client() as self._client:
            self._before = await scrape(self._client)
            done: list[subprocess.CompletedProcess[bytes]] = []
            with trio.move_on_after(TASK_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._kill_all)
                    done.append(await self._run_agent())
                    nursery.cancel_scope.cancel("the agent has ended")
            if not done:
                return False, f"no end in {TASK_S:.0f} s, after kills of {self.kills}"
            faults = [*await self._faults(), *self._wrong(done[0])]
            if faults:
                return False, "\n".join([*faults, self._output(done[0])])
            return True, await self._shown()

    async def _run_agent(self) -> "subprocess.CompletedProcess[bytes]":
        return await trio.run_process(
            [*self.agent.command, QUESTION],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=self.folder,
            env={**os.environ, **self.agent.environ},
        )

    # ---- kills

    async def _kill_all(self) -> None:
        """In each turn, while its answer streams. Looks again until it is cancelled."""
        for number, _ in enumerate(TASKS[self.agent.task]):
            victims = [ENGINE, FRONTEND] if number in BOTH_DIE else [ENGINE]
            streams = partial(self._is_streaming, number)
            await wait_until(streams, f"turn {number + 1}", look_s=LOOK_S)
            pids = {title_of(pid): pid for pid in children_of(self.server.popen.pid)}
            await kill(*(pids[victim] for victim in victims))
            self.kills += [
                f"{victim.removeprefix(PREFIX)} in turn {number + 1}" for victim in victims
            ]

    async def _is_streaming(self, number: int) -> bool:
        """Whether this turn has given tokens, and has not ended."""
        try:
            now = await scrape(self._client)
        except httpx.TransportError:  # no frontend
            return False
        asked = now[ASKED] - self._before[ASKED] - self.agent.more_requests
        return asked == number + 1 and now[ACTIVE] > 0 == now[QUEUED]

    async def _count(self, counter: str) -> float:
        """Since the task began."""
        return (await scrape(self._client))[counter] - self._before[counter]

    # ---- what came of it

    async def _faults(self) -> list[str]:
        turns = len(TASKS[self.agent.task])
        engines = sum("engine" in each for each in self.kills)
        wanted = {ASKED: turns + self.agent.more_requests, FAILED: 0, ABORTED: 0, LOST: 0}
        counts = {name: await self._count(name) for name in wanted}
        faults = [f"{name}: {counts[name]:.0f}" for name in wanted if counts[name] != wanted[name]]
        if engines != turns or await self._count(REPLAYED) < engines:
            faults.append(f"{await self._count(REPLAYED):.0f} replays; killed: {self.kills}")
        return faults

    def _wrong(self, done: "subprocess.CompletedProcess[bytes]") -> list[str]:
        faults = [f"exit code {done.returncode}"] if done.returncode else []
        reconnects = len(RECONNECT.findall(done.stdout + done.stderr))
        faults += [f"{reconnects} reconnects"] if reconnects else []
        if (self.folder / PROGRAM).read_text() != SOURCE.replace(WRONG, RIGHT):
            faults.append(f"{PROGRAM} is not mended")
        said = self.agent.record(done.stdout.decode())
        for wanted in (each for turn in TASKS[self.agent.task] for each in turn.said):
            if said[:1] != [wanted]:
                return [*faults, f"not said: {wanted}, but: {said[:1]}"]
            said.pop(0)
        return [*faults, *(f"said besides: {each}" for each in said)]

    def _output(self, done: "subprocess.CompletedProcess[bytes]") -> str:
        return (done.stdout + done.stderr).decode(errors="replace")[-6000:]

    async def _shown(self) -> str:
        frontends = sum("frontend" in each for each in self.kills)
        replays, taken_over = await self._count(REPLAYED), await self._count(TAKEN_OVER)
        return (
            f"scripted model: {len(TASKS[self.agent.task])} turns, engine killed in each"
            f" ({replays:.0f} replays), {frontends} frontends killed"
            f" ({taken_over:.0f} connections taken over), 0 reconnects"
        )


def title_of(pid: int) -> str:
    """What the process calls itself, at once: the live tree waits for all that boots."""
    return (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").decode()


# ---- records


def codex_record(home: pathlib.Path) -> Callable[[str], list[Said]]:
    """Reads the one session in this home."""

    def read(_output: str) -> list[Said]:
        (path,) = (home / "sessions").rglob("*.jsonl")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        items = [line["payload"] for line in lines if line["type"] == "response_item"]
        return [said for item in items for said in _codex_said(item)]

    return read


def _codex_said(item: Mapping[str, object]) -> Sequence[Said]:
    match item:
        case {"type": "reasoning", "summary": [{"text": text}]}:
            return [("reasoning", text)]
        case {"type": "reasoning", "content": [{"text": text}]}:
            return [("reasoning", text)]
        case {"type": "message", "role": "assistant", "content": [{"text": text}]}:
            return [("text", text)]
        case {"type": "function_call", "name": name, "arguments": str(arguments)}:
            namespace = f"{item['namespace']}__" if item.get("namespace") else ""
            return [(f"{namespace}{name}", json.loads(arguments))]
        case {"type": "custom_tool_call", "name": str(name), "input": text}:
            return [(name, {"input": text})]
    return []


def claude_record(output: str) -> list[Said]:
    """Of what `--output-format stream-json` prints."""
    lines = [json.loads(line) for line in output.splitlines()]
    messages = [line["message"] for line in lines if line["type"] == "assistant"]
    return [_claude_said(block) for message in messages for block in message["content"]]


def _claude_said(block: Mapping[str, object]) -> Said:
    match block:
        case {"type": "thinking", "thinking": text}:
            return "reasoning", text
        case {"type": "text", "text": text}:
            return "text", text
        case {"type": "tool_use", "name": str(name), "input": arguments}:
            return name, arguments
    raise AssertionError(f"a block of another kind: {block}")
