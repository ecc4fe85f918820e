"""The blocking face of the runtime: `LLM("MODEL").generate([...])`, for scripts and notebooks.

A thread of its own runs trio and `open_runtime`; calls go to it and wait. It closes itself when
the `with` block is left, on `close()`, or when the main thread ends, which one of its tasks waits
for: no exit handler, no daemon thread, no finalizer. Must not know what the runtime does.
"""

import threading
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

import attrs
import trio

from ..engine.messages import FinishReason
from ..engine.sampling_params import SamplingParams
from .generation import ChatPrompt, GenerationStream, Prompt, Usage
from .runtime import Runtime, open_runtime

# A thread can be joined, not waited for together with something else; so the wait is in pieces, and
# one is all that a closed LLM leaves behind for a moment. Four wake-ups a second cost nothing.
LOOK_AT_MAIN_THREAD_S = 0.25


@attrs.frozen
class Completion:
    """One whole answer."""

    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    usage: Usage


@attrs.frozen
class LLMClosed(Exception):
    """The LLM was closed; make another one."""

    def __str__(self) -> str:
        return "this LLM is closed; make another one"


class LLM:
    """A model behind blocking calls; any thread may call, calls of many threads run side by side.

    The arguments are `open_runtime`'s. Raises what it raises, in the constructor; when the runtime
    fails later, calls raise its error.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self._opened = threading.Event()
        self._failure: BaseException | None = None
        self._runtime: Runtime | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._thread = threading.Thread(
            target=self._run, args=(model, options), name="triolet-llm", daemon=False
        )
        self._thread.start()
        self._opened.wait()
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

        A list of token ids is one prompt. Raises as `Runtime.generate` does, and `LLMClosed`.
        """
        many = _many(prompts)
        if self._token is None or self._runtime is None:
            raise LLMClosed
        try:
            return trio.from_thread.run(self._generate_all, many, params, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise (self._failure or LLMClosed()) from None

    def close(self) -> None:
        """Abort what runs, end every process, and join the thread. Harmless when repeated."""
        if self._token is not None:
            try:
                self._token.run_sync_soon(self._scope.cancel, "the LLM was closed")
            except trio.RunFinishedError:
                pass  # it has ended by itself
        self._thread.join()
        self._token = None

    def __enter__(self) -> Self:
        """The LLM itself, closed when the block is left."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    # ---- in the thread

    def _run(self, model: str | None, options: dict[str, Any]) -> None:
        try:
            trio.run(self._serve, model, options)
        except BaseException as error:
            # Not lost: the constructor or the next call raises it where somebody can see it.
            self._failure = error
        finally:
            self._opened.set()

    async def _serve(self, model: str | None, options: dict[str, Any]) -> None:
        with self._scope:
            async with open_runtime(model, **options) as runtime, trio.open_nursery() as nursery:
                self._token = trio.lowlevel.current_trio_token()
                self._runtime = runtime
                self._opened.set()
                nursery.start_soon(self._close_with_main_thread, name="main-thread-monitor")
                await trio.sleep_forever()

    async def _close_with_main_thread(self) -> None:
        limiter = trio.CapacityLimiter(1)
        while threading.main_thread().is_alive():
            await trio.to_thread.run_sync(
                partial(threading.main_thread().join, LOOK_AT_MAIN_THREAD_S),
                abandon_on_cancel=True,  # it ends by itself, after this look
                limiter=limiter,
            )
        self._scope.cancel("the main thread has ended")

    async def _generate_all(
        self, prompts: list[Prompt], params: SamplingParams | None
    ) -> list[Completion]:
        results: list[Completion | None] = [None] * len(prompts)

        async def one(place: int, prompt: Prompt) -> None:
            assert self._runtime is not None
            opened = self._runtime.generate(prompt, params, streaming=False)
            async with opened as stream:
                results[place] = _completion(await stream.collect())

        async with trio.open_nursery() as nursery:
            for place, prompt in enumerate(prompts):
                nursery.start_soon(one, place, prompt)
        return [result for result in results if result is not None]


def _many(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Text, a conversation and a list of token ids are one prompt; a list of those is many."""
    if isinstance(prompts, str | ChatPrompt) or (prompts and isinstance(prompts[0], int)):
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
    )
