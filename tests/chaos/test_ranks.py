"""One of three workers dies in the midst of a step, embedded: replaced, unnoticed, nothing left."""

import contextlib
import os
import secrets
import signal

import msgspec
import pytest
import trio

import triolet
from triolet import SamplingParams
from triolet.engine.messages import Utility
from triolet.nurseries.tasks.task_tree import ProcessTree
from triolet.runtime.errors import NoEngineLeft, UtilityFailed
from triolet.runtime.messages import EngineState
from triolet.transports.links.zmq_channel import HubChannel

from ..end_to_end.server import DEADLINE_S, MARK, marked_processes, remains, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

WORKERS = 3
# Long against everything else, so that a kill falls into a step.
STEP_S = 0.05
TOKENS = 40


async def engine_tree(runtime: triolet.Runtime, workers: int = WORKERS) -> ProcessTree:
    """The engine and its workers, asked now; again while one of them is too late to answer."""
    while True:
        await trio.lowlevel.checkpoint()
        for peer in runtime.client.balancer.engines:
            with contextlib.suppress(UtilityFailed):
                text = await runtime.client.call_utility(peer, Utility.TASK_TREE)
                tree = msgspec.json.decode(text, type=ProcessTree)
                if len(tree.processes) == workers:
                    return tree


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


async def kill_in_mid_step(runtime: triolet.Runtime, rank: int, tokens: int) -> list[int]:
    """Kill one worker while all of them compute; the tokens of the stream."""
    params = SamplingParams(max_tokens=tokens, seed=1, ignore_eos=True)
    async with runtime.generate("One morning", params) as stream:
        async for _ in stream:
            if len(stream.token_ids) == 3:
                workers = (await engine_tree(runtime)).processes
                assert [worker.facts["rows"] for worker in workers] == [1] * WORKERS
                os.kill(workers[rank].pid, signal.SIGKILL)
    return stream.token_ids


async def test_each_rank_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = secrets.token_hex(8)
    monkeypatch.setenv(MARK, mark)
    with trio.fail_after(2 * DEADLINE_S):
        opened = triolet.open_runtime(workers=WORKERS, executor="null", null_step_s=STEP_S)
        async with opened as runtime:
            run_id = run_id_of(runtime)
            undisturbed = await collect(runtime, TOKENS)
            for rank in range(WORKERS):
                epoch = runtime.health().engines[0].epoch
                before = await engine_tree(runtime)
                assert await kill_in_mid_step(runtime, rank, TOKENS) == undisturbed
                await wait_until(lambda: runtime.health().ready, "the engine comes back")
                (engine,) = runtime.health().engines
                assert engine.state is EngineState.READY
                assert engine.epoch > epoch
                old = {before.pid, *(worker.pid for worker in before.processes)}
                assert not old & set(marked_processes(mark)), "the whole engine was replaced"
                assert len(marked_processes(mark)) == 1 + WORKERS
                assert await collect(runtime, TOKENS) == undisturbed
            (counts,) = await runtime.engine_statistics()
            assert counts.kv_blocks_free == counts.kv_blocks
            assert remains(mark, run_id), "the look for what is left finds what is there"
    assert remains(mark, run_id) == []


async def kill_until_given_up(mark: str) -> None:
    """Kill the only engine whenever there is one."""
    async with triolet.open_runtime(executor="null") as runtime:
        killed: set[int] = set()

        def is_up_again() -> bool:
            return runtime.health().ready and runtime.health().engines[0].epoch not in killed

        while True:
            await wait_until(is_up_again, "the engine comes back")
            epoch, pid = runtime.health().engines[0].epoch, (await engine_tree(runtime, 1)).pid
            assert len(marked_processes(mark)) == 2
            killed.add(epoch)
            os.kill(pid, signal.SIGKILL)


async def test_the_body_fails_when_no_engine_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = secrets.token_hex(8)
    monkeypatch.setenv(MARK, mark)
    with trio.fail_after(2 * DEADLINE_S), pytest.raises(NoEngineLeft, match="SIGKILL"):
        await kill_until_given_up(mark)
    assert marked_processes(mark) == {}
