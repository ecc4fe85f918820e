"""Workers die in the midst of a step, embedded: replaced, the same bits, nothing left."""

import contextlib
import os
import secrets
import signal
from typing import Any

import attrs
import msgspec
import numpy
import pytest
import trio

import triolet
from triolet import PromptEmbeds, SamplingParams
from triolet.engine.messages import Utility
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.nurseries.processes.spares import APART
from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.runtime.errors import NoEngineLeft, UtilityFailed
from triolet.runtime.frontend.generation import GenerationStream
from triolet.transports.links.zmq_channel import HubChannel

from ..end_to_end.server import DEADLINE_S, MARK, marked_processes, remains, wait_until

pytestmark = pytest.mark.slow

WORKERS = 3
# Long against everything else, so that a kill falls into a step.
STEP_S = 0.05


async def engine_tree(runtime: triolet.Runtime, workers: int = WORKERS) -> ProcessTree:
    """The engine and its workers, asked now; again while one of them is too late to answer.

    A spare worker, which comes a moment later, is left out.
    """
    while True:
        await trio.lowlevel.checkpoint()
        for peer in runtime.client.balancer.engines:
            with contextlib.suppress(UtilityFailed):
                text = await runtime.client.call_utility(peer, Utility.TASK_TREE)
                tree = msgspec.json.decode(text, type=ProcessTree)
                found = [each for each in tree.processes if not each.name.startswith(APART)]
                if len(found) == workers:
                    return attrs.evolve(tree, processes=found)


def run_id_of(runtime: triolet.Runtime) -> str:
    """The part of its sockets' names that no other run has."""
    channel = runtime.client.channel
    assert isinstance(channel, HubChannel)
    run_id = channel.endpoints[0].removeprefix("ipc://@triolet-").partition("-")[0]
    assert len(run_id) == 16
    return run_id


async def collect(runtime: triolet.Runtime, tokens: int) -> list[int]:
    """The tokens of one request, always the same ones."""
    params = SamplingParams(max_tokens=tokens, seed=1, ignore_eos=True)
    async with runtime.generate("One morning", params) as stream:
        return (await stream.collect()).token_ids


async def kill_in_mid_step(runtime: triolet.Runtime, rank: int) -> list[int]:
    """Kill one worker while all of them compute; the tokens of the stream that it was for."""
    params = SamplingParams(max_tokens=8, seed=1, ignore_eos=True)
    async with runtime.generate("One morning", params) as stream:
        async for _ in stream:
            if len(stream.token_ids) == 3:
                workers = (await engine_tree(runtime)).processes
                os.kill(workers[rank].pid, signal.SIGKILL)
    return stream.token_ids


async def test_each_rank_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = secrets.token_hex(8)
    monkeypatch.setenv(MARK, mark)
    with trio.fail_after(2 * DEADLINE_S):
        opened = triolet.open_runtime(workers=WORKERS, executor="null", null_step_s=STEP_S)
        async with opened as runtime:
            run_id = run_id_of(runtime)
            undisturbed = await collect(runtime, 8)
            (engine,) = runtime.health().engines
            for rank in range(WORKERS):
                before = await engine_tree(runtime)
                assert await kill_in_mid_step(runtime, rank) == undisturbed
                assert runtime.health().engines[0].epoch == engine.epoch
                now = await engine_tree(runtime)
                assert now.pid == before.pid
                old = {worker.pid for worker in before.processes}
                assert not old & set(marked_processes(mark)), "all ranks were replaced"
                assert len(marked_processes(mark)) == 1 + WORKERS
                assert await collect(runtime, 8) == undisturbed
            (counts,) = await runtime.engine_statistics()
            assert counts.kv_blocks_free == counts.kv_blocks
            assert counts.worker_restarts == WORKERS
            assert remains(mark, run_id), "the look for what is left finds what is there"
    assert remains(mark, run_id) == []


# Half of a stream's tokens: with 2 in flight some are computed and never applied. Streams have
# credit up to the next kill but one, so that none ends before all were made, however slow one is.
KILLS = (1, 7, 20, 33, 46)
TOKENS = 60
FORM = StructuredOutputs.regex("[a-z ]{40,60}")
REQUESTS: dict[str, dict[str, Any]] = {
    "penalties": {"temperature": 0.8, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "logprobs": {"temperature": 0.8, "logprobs": 3},
    "biases and bad words": {
        "temperature": 0.8,
        "logit_bias": ((300, 4.0), (301, -4.0)),
        "bad_words": ("the", "and"),
    },
    "choices": {"temperature": 0.8, "n": 2, "logprobs": 0},
    "a prompt's logprobs": {"prompt_logprobs": 2},
    "greedy, with stop strings": {"temperature": 0.0, "stop": ("zzz",)},
    "grammar": {"temperature": 0.8, "structured_outputs": FORM, "ignore_eos": False},
    "embeddings": {"temperature": 0.8, "logprobs": 1},
}
EMBEDDED, HIDDEN = 24, 256


def prompt_of(name: str) -> str | PromptEmbeds:
    """Of one request of `REQUESTS`; embeddings are small numbers in bfloat16."""
    if name != "embeddings":
        return f"One morning, {name}"
    values = numpy.random.default_rng(1).normal(0.0, 0.02, (EMBEDDED, HIDDEN))
    rows = (values.astype("<f4").view("<u4") >> 16).astype("<u2")
    return PromptEmbeds(rows.tobytes(), rows.shape, "bfloat16")


@attrs.define
class Kills:
    """Due when the first request has so many tokens; `streams` wait at their credit."""

    due: trio.Event = attrs.field(factory=trio.Event)
    killed: list[int] = attrs.field(factory=list)
    streams: list[GenerationStream] = attrs.field(factory=list)

    def note(self, tokens: int) -> None:
        if len(self.killed) < len(KILLS) and tokens >= KILLS[len(self.killed)]:
            self.due.set()

    async def run(self, runtime: triolet.Runtime, victim: str) -> None:
        while True:
            await self.due.wait()
            tree = await engine_tree(runtime, 1)
            pid = tree.pid if victim == "engine" else tree.processes[0].pid
            if pid in self.killed:
                continue  # it is shown until its successor is
            os.kill(pid, signal.SIGKILL)
            self.killed.append(pid)
            self.due = trio.Event()
            now, then = [*KILLS, TOKENS, TOKENS][len(self.killed) :][:2]
            for stream in self.streams:
                stream.grant(then - now)


async def ask_all(runtime: triolet.Runtime, kills: Kills | None = None) -> dict[str, Any]:
    """What each request of `REQUESTS` gets, all at once."""
    found: dict[str, Any] = {}

    async def ask(name: str) -> None:
        fields = {"max_tokens": TOKENS, "seed": 1, "ignore_eos": True, **REQUESTS[name]}
        params, credit = SamplingParams(**fields), None if kills is None else KILLS[1]
        async with runtime.generate(prompt_of(name), params, credit=credit) as stream:
            if kills is not None:
                kills.streams.append(stream)
            async for _ in stream:
                if kills is not None and name == "penalties":
                    kills.note(len(stream.token_ids))
        choices = [(each.token_ids, each.text, each.finish_reason) for each in stream.choices]
        usage = attrs.evolve(stream.usage, cached_tokens=0)
        found[name] = (choices, stream.logprobs, stream.prompt_logprobs, usage)

    async with trio.open_nursery() as nursery:
        for name in REQUESTS:
            nursery.start_soon(ask, name)
    return found


@pytest.mark.parametrize(
    ("executor", "victim"), [("native", "worker"), ("torch", "worker"), ("native", "engine")]
)
async def test_every_kind_of_request_is_the_same_bits(executor: str, victim: str) -> None:
    kills = Kills()
    with trio.fail_after(4 * DEADLINE_S):
        async with triolet.open_runtime(executor=executor, threads=1) as runtime:
            undisturbed = await ask_all(runtime)
            (engine,) = runtime.health().engines
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kills.run, runtime, victim)
                disturbed = await ask_all(runtime, kills)
                nursery.cancel_scope.cancel("all have ended")
            for name, wanted in undisturbed.items():
                assert disturbed[name] == wanted, name
            await engine_tree(runtime, 1)  # the last kill may have come after all tokens
            (counts,) = await runtime.engine_statistics()
            if victim == "engine":
                assert runtime.health().engines[0].epoch >= engine.epoch + 3
            else:
                assert runtime.health().engines[0].epoch == engine.epoch
                assert counts.worker_restarts >= 3
            assert counts.kv_blocks_free == counts.kv_blocks


async def kill_until_given_up(mark: str) -> None:
    """Kill the only engine whenever there is one."""
    async with triolet.open_runtime(executor="null") as runtime:
        killed: set[int] = set()

        def is_up_again() -> bool:
            return runtime.health().ready and runtime.health().engines[0].epoch not in killed

        while True:
            await wait_until(is_up_again, "the engine comes back")
            epoch, tree = runtime.health().engines[0].epoch, await engine_tree(runtime, 1)
            assert {tree.pid, tree.processes[0].pid} <= set(marked_processes(mark))
            killed.add(epoch)
            os.kill(tree.pid, signal.SIGSEGV)  # a plain SIGKILL counts toward nothing


async def test_the_body_fails_when_no_engine_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = secrets.token_hex(8)
    monkeypatch.setenv(MARK, mark)
    with trio.fail_after(2 * DEADLINE_S), pytest.raises(NoEngineLeft, match="SIGSEGV"):
        await kill_until_given_up(mark)
    assert marked_processes(mark) == {}
