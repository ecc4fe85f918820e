"""Blocking interface of the runtime: `LLM("MODEL").generate([...])`, for scripts and notebooks.

A thread of its own runs trio and `open_runtime`; calls go to it and wait. It closes itself when
the `with` block is left, on `close()`, or when the main thread ends, which one of its tasks looks
for: no exit handler, no daemon thread, no finalizer.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Self, cast

import attrs
import trio

from ..engine.messages import FinishReason
from ..engine.sampling_params import SamplingParams
from ..nurseries.tasks.service import single_errors_unwrapped
from .config import WHOLE_MERGE_S
from .errors import Overloaded
from .frontend.generation import GenerationStream
from .runtime import Runtime, open_runtime
from .text.outputs import GenerationChoice, Logprobs, Usage
from .text.prompts import ChatPrompt, Prompt, PromptEmbeds

# A thread's end can be joined, not waited for together with something else, and a thread that joins
# would outlive us. So one of our tasks looks: four wake-ups a second cost nothing.
LOOK_AT_MAIN_THREAD_S = 0.25


@attrs.frozen
class Completion:
    """One whole answer."""

    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    usage: Usage
    # All answers to the prompt; text, ids and reason above are the first one's.
    choices: tuple[GenerationChoice, ...] = ()
    # Of the first answer and of the prompt (but its first token), if asked for.
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None


@attrs.frozen
class LLMClosed(Exception):
    """The LLM was closed; make another one."""

    def __str__(self) -> str:
        return "this LLM is closed; make another one"


@attrs.define(eq=False)
class _Call:
    """One `generate` of some thread, on its way through the loop's thread."""

    prompts: list[Prompt]
    params: SamplingParams | None
    # Cancelled when the thread that asked does not wait any more.
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    # Set last of all. Then there are results, or an error, or else the loop's end was quicker.
    done: threading.Event = attrs.field(factory=threading.Event, init=False)
    results: list[Completion] | None = attrs.field(default=None, init=False)
    error: Exception | None = attrs.field(default=None, init=False)


class LLM:
    """A model behind blocking calls; any thread may call, calls of many threads run side by side.

    The arguments are `open_runtime`'s. Raises what it raises, in the constructor; when the runtime
    fails later, calls raise its error. It must not be used from a trio task, which would block.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        # Set in this order: the loop runs, the runtime is up or will never be.
        self._looping = threading.Event()
        self._opened = threading.Event()
        self._failure: BaseException | None = None
        self._runtime: Runtime | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        # Of the calls; None before the runtime is up and as soon as it goes down.
        self._nursery: trio.Nursery | None = None
        self._scope = trio.CancelScope()
        # Prompts for which there was no room; one is woken whenever another has been answered.
        self._room = trio.lowlevel.ParkingLot()
        self._thread = threading.Thread(
            target=self._run, args=(model, options), name="triolet-llm", daemon=False
        )
        self._thread.start()
        try:
            self._opened.wait()
        except BaseException:  # Ctrl-C: the caller will have no object to close
            self.close()
            raise
        if self._runtime is None:
            self._thread.join()
            assert self._failure is not None
            raise self._failure

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
    ) -> list[Completion]:
        """Answer all prompts, in their order; one fails, all fail.

        Any number may be given: as many as the admission takes run at once, the others wait.
        A list of token ids is one prompt. Raises as `Runtime.generate` does (a group if several
        prompts fail at once), and `LLMClosed`. Ctrl-C in the calling thread aborts its prompts.
        """
        call = _Call(_many(prompts), params)
        if not self._soon(self._start, call):
            raise self._failure or LLMClosed()
        try:
            call.done.wait()
        except BaseException:
            self._soon(call.scope.cancel, "the thread that asked was interrupted")
            raise
        if call.results is not None:
            return call.results
        if call.error is not None:
            raise call.error
        self._thread.join()  # the loop ends, and only then is it known of what
        raise self._failure or LLMClosed()

    def close(self) -> None:
        """Abort what runs, end every process, and join the thread. Harmless when repeated."""
        self._soon(self._scope.cancel, "the LLM was closed")
        self._thread.join()

    def __enter__(self) -> Self:
        """The LLM itself, closed when the block is left."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _soon(self, function: Callable[..., object], *args: object) -> bool:
        """Have the loop's thread call this; False if the loop has ended."""
        self._looping.wait()
        assert self._token is not None
        try:
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            return False
        return True

    # ---- in the thread

    def _run(self, model: str | None, options: dict[str, Any]) -> None:
        try:
            trio.run(self._serve, model, options)
        except BaseException as error:
            # Not lost: the constructor or the next call raises it in the caller's thread.
            self._failure = error
        finally:
            self._opened.set()

    async def _serve(self, model: str | None, options: dict[str, Any]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._looping.set()
        with self._scope:
            async with open_runtime(model, **options) as runtime, trio.open_nursery() as nursery:
                self._runtime, self._nursery = runtime, nursery
                self._opened.set()
                try:
                    await self._wait_main_thread_ended()
                finally:
                    self._nursery = None
                nursery.cancel_scope.cancel("the main thread has ended")

    async def _wait_main_thread_ended(self) -> None:
        while threading.main_thread().is_alive():  # noqa: ASYNC110
            await trio.sleep(LOOK_AT_MAIN_THREAD_S)  # a thread has no event for its end

    def _start(self, call: _Call) -> None:
        if self._nursery is None:
            call.done.set()
        else:
            self._nursery.start_soon(self._answer, call, name="call")

    async def _answer(self, call: _Call) -> None:
        try:
            with call.scope, single_errors_unwrapped():
                call.results = await self._generate_all(call.prompts, call.params)
        except Exception as error:  # it is the caller's, in its own thread
            call.error = error
        finally:
            call.done.set()

    async def _generate_all(
        self, prompts: list[Prompt], params: SamplingParams | None
    ) -> list[Completion]:
        results: list[Completion | None] = [None] * len(prompts)
        left = iter(enumerate(prompts))

        async def answer_next() -> None:
            for place, prompt in left:
                results[place] = await self._generate_one(prompt, params)

        async with trio.open_nursery() as nursery:
            for _ in range(min(len(prompts), self._at_once(params))):
                nursery.start_soon(answer_next, name="prompts")
        return [result for result in results if result is not None]

    def _at_once(self, params: SamplingParams | None) -> int:
        """How many prompts are taken at once, if no other call has any."""
        assert self._runtime is not None
        choices = 1 if params is None else params.n
        return max(1, self._runtime.admission.limits.active_requests_max // choices)

    async def _generate_one(self, prompt: Prompt, params: SamplingParams | None) -> Completion:
        """Answer one prompt as soon as there is room for it."""
        assert self._runtime is not None
        while True:
            try:
                opened = self._runtime.generate(
                    prompt, params, streaming=False, merge_s=WHOLE_MERGE_S
                )
                async with opened as stream:
                    completion = _completion(await stream.collect())
                self._room.unpark()
                return completion
            except Overloaded as full:
                with trio.move_on_after(full.retry_after_s):
                    await self._room.park()


def _many(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Text, a conversation, embeddings and a list of token ids are one prompt; a list is many."""
    if isinstance(prompts, str | ChatPrompt | PromptEmbeds):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [cast(Prompt, prompts)]
    return list(cast(Sequence[Prompt], prompts))


def _completion(stream: GenerationStream) -> Completion:
    assert stream.finish_reason is not None
    return Completion(
        prompt_token_ids=stream.prompt_token_ids,
        text=stream.text,
        token_ids=stream.token_ids,
        finish_reason=stream.finish_reason,
        usage=stream.usage,
        choices=tuple(stream.choices),
        logprobs=stream.logprobs,
        prompt_logprobs=stream.prompt_logprobs,
    )
