"""A runtime without processes answers as one with them does, and says what it cannot do."""

import os
import pathlib
from typing import Any

import pytest
import trio

from triolet.engine.errors import InvalidParameter
from triolet.engine.sampling_params import SamplingParams
from triolet.nurseries.tasks.service import ServiceEnded
from triolet.runtime.errors import RuntimeClosed
from triolet.runtime.llm import LLM
from triolet.runtime.runtime import Runtime, open_runtime
from triolet.tests.live_tasks import find_background_tasks

from ...leaks import check_no_leaks, children_of
from ..acting import DEADLINE_S

PARAMS = SamplingParams(max_tokens=8, seed=7)
ENDLESS = SamplingParams(max_tokens=400, seed=7, ignore_eos=True)


async def tokens_of(runtime: Runtime, prompt: str) -> list[int]:
    async with runtime.generate(prompt, PARAMS) as stream:
        return (await stream.collect()).token_ids


async def test_it_serves_without_a_process_and_leaves_nothing(null_folder: pathlib.Path) -> None:
    before = children_of(os.getpid())
    opened = open_runtime(str(null_folder), in_process=True, executor="null", engines=2)
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with opened as runtime:
            assert children_of(os.getpid()) == before
            assert [engine.reason for engine in runtime.health().engines] == ["", ""]
            first = await tokens_of(runtime, "the cat")
            assert len(first) == 8
            assert await tokens_of(runtime, "the cat") == first
            async with runtime.generate("the cat", ENDLESS) as stream:
                await anext(stream)
            while any(c.kv_blocks_free < c.kv_blocks for c in await runtime.engine_statistics()):
                pass  # a step may still hold some
        with pytest.raises(RuntimeClosed):
            await tokens_of(runtime, "the cat")
    assert find_background_tasks() == []


@pytest.mark.parametrize(
    "options",
    [{"spare_engines": 1}, {"workers": 2}, {"null_step_s": 0.1}, {"record_steps": "/tmp"}],
    ids=str,
)
async def test_what_needs_processes_is_refused(
    null_folder: pathlib.Path, options: dict[str, Any]
) -> None:
    (name,) = options
    with pytest.raises(InvalidParameter, match=f"{name} needs processes"):
        async with open_runtime(str(null_folder), in_process=True, executor="null", **options):
            pytest.fail("it cannot do this")


async def test_an_engine_that_ends_ends_the_block(null_folder: pathlib.Path) -> None:
    async def run() -> None:
        async with open_runtime(str(null_folder), in_process=True, executor="null"):
            find_background_tasks("step-loop")[0].cancel("the test ends it")
            await trio.sleep_forever()

    with check_no_leaks(), trio.fail_after(DEADLINE_S), pytest.raises(ServiceEnded):
        await run()


@pytest.mark.slow
def test_it_answers_as_processes_do() -> None:
    """The bundled model, computed: the same tokens."""
    prompts = ["One morning, a quick red fox", "The old lantern"]
    answers = []
    for in_process in (False, True):
        with LLM(in_process=in_process) as llm:
            answers.append([answer.token_ids for answer in llm.generate(prompts, PARAMS)])
    assert answers[0] == answers[1]
