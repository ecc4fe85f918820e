"""The blocking face: opens, answers, fails, closes; from one thread and from many."""

import asyncio
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import pytest
import trio

from triolet.engine.errors import EngineError, InvalidParameter, ModelFolderError, PromptTooLong
from triolet.engine.messages import FinishReason
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.config import AdmissionLimits, SupervisionSettings
from triolet.runtime.errors import LLMClosed, NoEngineLeft
from triolet.runtime.llm import LLM, Completion
from triolet.runtime.text.prompts import ChatPrompt, Prompt, PromptEmbeds

from ..leaks import check_no_leaks, children_of

pytestmark = pytest.mark.slow

PARAMS = SamplingParams(max_tokens=4, seed=7)
# More than a minute of steps: it does not end by itself.
ENDLESS = SamplingParams(max_tokens=400, seed=7, ignore_eos=True)
STEP_S = 0.2
NO_RESTARTS: dict[str, Any] = {"supervision": SupervisionSettings(restart_limit=0)}
# A thread that has not answered by then hangs.
THREAD_BOUND_S = 240.0


@pytest.fixture(scope="module")
def llm(null_folder: pathlib.Path) -> Iterator[LLM]:
    with LLM(str(null_folder), executor="null") as opened:
        yield opened


def in_thread(function: Any, *args: Any) -> tuple[threading.Thread, list[object]]:
    """Run in a thread of its own; the list gets its result or error."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(function(*args))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def test_it_answers_in_the_order_of_the_prompts(llm: LLM) -> None:
    both = llm.generate(["the cat", "the dog"], PARAMS)
    assert both == [*llm.generate("the cat", PARAMS), *llm.generate("the dog", PARAMS)]
    assert both[0].text
    assert both[0].token_ids != both[1].token_ids
    assert both[0].finish_reason is FinishReason.LENGTH
    assert (both[0].usage.output_tokens, len(both[0].token_ids)) == (4, 4)


def test_a_list_of_ids_is_one_prompt_and_a_list_of_those_many(llm: LLM) -> None:
    ids = llm.generate("the cat", PARAMS)[0].prompt_token_ids
    one = llm.generate(ids, PARAMS)
    assert [one[0].token_ids] == [llm.generate("the cat", PARAMS)[0].token_ids]
    assert llm.generate([ids, ids], PARAMS) == one * 2
    chat = ChatPrompt([{"role": "user", "content": "hello"}])
    assert len(llm.generate(chat, PARAMS)) == 1
    assert llm.generate([], PARAMS) == []
    embeds = PromptEmbeds(bytes(3 * 4 * 4), (3, 4))
    assert llm.generate([embeds, embeds], PARAMS) == llm.generate(embeds, PARAMS) * 2


MESSAGES = [{"role": "user", "content": "hello"}]


def test_conversations_are_answered_by_the_template(llm: LLM) -> None:
    (rendered,) = llm.generate(ChatPrompt([*MESSAGES]), PARAMS)
    answers = [*llm.chat(MESSAGES, PARAMS), *llm.chat([MESSAGES, MESSAGES], PARAMS)]
    assert [each.token_ids for each in answers] == [rendered.token_ids] * 3
    assert [each.prompt_token_ids for each in answers] == [rendered.prompt_token_ids] * 3


def test_an_engine_is_named_by_its_rank(llm: LLM) -> None:
    wanted = llm.generate("the cat", PARAMS)
    assert llm.generate("the cat", PARAMS, engine=0) == wanted
    assert len(llm.chat(MESSAGES, PARAMS, engine=0)) == 1
    assert "".join(output.text for output in llm.stream("the cat", PARAMS, engine=0))
    for call in (llm.generate, llm.stream):
        with pytest.raises(InvalidParameter, match="engine"):
            list(call("the cat", PARAMS, engine=1))


def test_a_stream_gives_the_same_answer_in_pieces(llm: LLM) -> None:
    (whole,) = llm.generate("the cat", PARAMS)
    outputs = list(llm.stream("the cat", PARAMS))
    assert "".join(output.text for output in outputs) == whole.text
    assert [token for output in outputs for token in output.token_ids] == whole.token_ids
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    with pytest.raises(PromptTooLong):
        list(llm.stream("the cat " * 500, PARAMS))
    many: Any = ["a", "b"]
    with pytest.raises(InvalidParameter, match="stream is for a single prompt"):
        list(llm.stream(many, PARAMS))


def test_a_stream_that_is_left_is_aborted(null_folder: pathlib.Path) -> None:
    with LLM(str(null_folder), executor="null", null_step_s=STEP_S) as slow:
        for output in slow.stream("the cat", ENDLESS):
            assert output.token_count < 400
            break
        assert slow._runtime is not None
        while slow._runtime.admission.active_requests:
            slow.generate("the dog", SamplingParams(max_tokens=1))


def test_many_prompts_draw_a_bar(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b", "c"], PARAMS, progress=True)
    assert "3/3" in capsys.readouterr().err
    llm.generate(["a", "b", "c"], PARAMS)  # stderr is no terminal
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("prompts", [5, None, {"role": "user"}, MESSAGES], ids=str)
def test_what_is_no_prompt_is_refused_with_what_to_do(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidParameter, match=r"prompts must be text.*messages are for LLM.chat"):
        llm.generate(prompts, PARAMS)


def test_in_a_trio_loop_it_says_what_to_do(llm: LLM) -> None:
    async def ask() -> None:
        llm.generate("the cat", PARAMS)

    with pytest.raises(RuntimeError, match=r"use triolet.open_runtime, or await trio.to_thread"):
        trio.run(ask)


def test_in_an_asyncio_loop_it_warns_and_answers(llm: LLM) -> None:
    async def ask() -> list[Completion]:
        return llm.generate("the cat", PARAMS)

    with pytest.warns(RuntimeWarning, match=r"await asyncio.to_thread\(llm.generate") as warned:
        answers = asyncio.run(ask())
    assert warned[0].filename == __file__
    assert answers == llm.generate("the cat", PARAMS)  # a prompt of less than a block


def test_its_text_and_those_of_answers_show_what_is_of_use(llm: LLM) -> None:
    assert repr(llm).startswith("<LLM of null")
    assert {name for name in dir(llm) if name[0] != "_"} == {"chat", "close", "generate", "stream"}
    (answer,) = llm.generate("the cat", attrs.evolve(PARAMS, logprobs=1))
    text = f"GenerationChoice(index=0, text={answer.text!r}, finish_reason='length')"
    assert repr(answer.choices[0]) == text
    assert repr(answer.logprobs) == "<Logprobs of 4 tokens>"


def test_errors_come_bare_and_it_goes_on(llm: LLM) -> None:
    with pytest.raises(PromptTooLong):
        llm.generate("the cat " * 500, PARAMS)
    mixed: list[Prompt] = ["the cat", [999_999]]
    with pytest.raises(InvalidParameter, match="token ids"):
        llm.generate(mixed, PARAMS)
    assert llm.generate("the cat", PARAMS)


def test_more_prompts_than_are_admitted_wait_for_room(null_folder: pathlib.Path) -> None:
    admission = AdmissionLimits(active_requests_max=3, queued_tokens_max=8)
    with LLM(str(null_folder), executor="null", admission=admission) as small:
        prompts: list[Prompt] = ["the cat " * (n % 5 + 1) for n in range(40)]
        answers = small.generate(prompts, PARAMS)
        assert [answer.token_ids for answer in answers[:5]] * 8 == [
            answer.token_ids for answer in answers
        ]
        twice = attrs.evolve(PARAMS, n=2)
        asking = [in_thread(small.generate, prompts[:10], twice) for _ in range(3)]
        for thread, _ in asking:
            thread.join(THREAD_BOUND_S)
        first, *others = [outcome for _, outcome in asking]
        assert first == others[0] == others[1]
        with pytest.raises(InvalidParameter):  # no waiting would help
            small.generate(prompts, attrs.evolve(PARAMS, n=4))


def test_many_threads_ask_side_by_side(llm: LLM) -> None:
    prompts = [f"the cat {number}" for number in range(8)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda prompt: llm.generate(prompt, PARAMS)[0], prompts))
    assert answers == llm.generate(prompts, PARAMS)


def test_the_constructor_raises_what_it_met(null_folder: pathlib.Path) -> None:
    with check_no_leaks():
        with pytest.raises(ModelFolderError, match="nowhere"):
            LLM("/nowhere")
        with pytest.raises(InvalidParameter, match="workers"):
            LLM(str(null_folder), executor="null", workers=0)
        with pytest.raises(TypeError, match="no_such_option"):
            LLM(str(null_folder), no_such_option=1)  # type: ignore[call-arg]


def test_a_verbose_one_prints_what_its_processes_do(
    null_folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LLM(str(null_folder), executor="null", verbose=True):
        pass
    assert "engine 0: ready after" in capsys.readouterr().err


def test_closing_is_harmless_twice_and_ends_all_use(null_folder: pathlib.Path) -> None:
    with check_no_leaks():
        llm = LLM(str(null_folder), executor="null")
        llm.close()
        llm.close()
        with pytest.raises(LLMClosed, match="make another one"):
            llm.generate("the cat", PARAMS)


def test_closing_aborts_what_another_thread_waits_for(null_folder: pathlib.Path) -> None:
    with check_no_leaks():
        with LLM(str(null_folder), executor="null", null_step_s=STEP_S) as llm:
            thread, outcome = in_thread(llm.generate, "the cat", ENDLESS)
            wait_under_way(llm)
        thread.join(THREAD_BOUND_S)
    assert isinstance(outcome[0], LLMClosed)


def test_a_runtime_that_fails_is_told_to_callers_at_work_and_to_later_ones(
    null_folder: pathlib.Path,
) -> None:
    before = children_of(os.getpid())
    opened = LLM(str(null_folder), executor="null", null_step_s=STEP_S, **NO_RESTARTS)
    with opened as llm:
        thread, outcome = in_thread(llm.generate, "the cat", ENDLESS)
        wait_under_way(llm)
        (engine,) = children_of(os.getpid()).keys() - before.keys()
        os.kill(engine, signal.SIGSEGV)  # a plain SIGKILL counts toward nothing
        thread.join(THREAD_BOUND_S)
        with pytest.raises(NoEngineLeft, match="SIGSEGV"):
            ask_while_it_lives(llm)
    assert isinstance(outcome[0], Exception)
    assert "SIGSEGV" in str(outcome[0])


def wait_under_way(llm: LLM) -> None:
    """Until another thread's request is admitted; a thread begins when the machine lets it."""
    assert llm._runtime is not None
    while not llm._runtime.admission.active_requests:
        llm.generate("the dog", SamplingParams(max_tokens=1))


def ask_while_it_lives(llm: LLM) -> None:
    """Requests are refused, for want of engines, until the runtime has ended; never returns."""
    while True:
        with contextlib.suppress(EngineError):
            llm.generate("the cat", PARAMS)


INTERRUPTED = """
import os, signal, sys, threading, time
import triolet

def interrupt():
    while not llm._runtime.admission.active_requests:
        time.sleep(0.01)
    time.sleep(0.3)  # by now the main thread waits; wherever it is, it is within the try
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
llm = triolet.LLM({folder!r}, executor="null", null_step_s={step_s})
threading.Thread(target=interrupt).start()
try:
    llm.generate("the cat", triolet.SamplingParams(max_tokens=400, ignore_eos=True))
except KeyboardInterrupt:
    print("interrupted")
print(len(llm.generate("the cat", triolet.SamplingParams(max_tokens=2))[0].token_ids))
print(llm._runtime.admission.active_requests)
# No close: the end of the main thread is one.
"""


def test_an_interrupt_aborts_the_prompt_and_the_end_of_the_main_thread_closes(
    null_folder: pathlib.Path,
) -> None:
    program = INTERRUPTED.format(folder=str(null_folder), step_s=STEP_S)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=THREAD_BOUND_S
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "interrupted\n2\n0\n"
