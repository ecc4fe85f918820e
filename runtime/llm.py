"""Blocking interface of the runtime: `LLM("MODEL").generate([...])`, for scripts and notebooks.

`chat` takes conversations, `stream` gives pieces of one answer as they come.

A thread of its own runs trio and `open_runtime`; calls go to it and wait. It closes itself when
the `with` block is left, on `close()`, or when the main thread ends, which one of its tasks looks
for: no exit handler, no daemon thread, no finalizer.
"""

import queue
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Self, Unpack, cast

import attrs
import sniffio
import trio

from ..engine.errors import InvalidParameter
from ..engine.messages import FinishReason
from ..engine.sampling_params import SamplingParams
from ..nurseries.tasks.background import start_background_task_soon
from ..nurseries.tasks.service import single_errors_unwrapped
from .arguments import RuntimeArguments
from .config import WHOLE_MERGE_S, RuntimeSettings
from .errors import LLMClosed, Overloaded
from .event_lines import LineReport, show_download
from .events import OnEvent
from .frontend.generation import GenerationStream
from .runtime import Runtime, open_runtime
from .text.outputs import GenerationChoice, GenerationOutput, Logprobs, Usage
from .text.prompts import ChatPrompt, Prompt, PromptEmbeds

# Messages, each with `role` and `content`.
Conversation = Sequence[Mapping[str, Any]]
# A thread's end can be joined, not waited for together with something else, and a thread that joins
# would outlive us. So one of our tasks looks: four wake-ups a second cost nothing.
LOOK_AT_MAIN_THREAD_S = 0.25
# A person at a terminal wonders from then on whether a start still goes on.
SILENT_START_S = 3.0


@attrs.frozen
class Completion:
    """Answer that is whole."""

    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    usage: Usage
    # Every answer to the prompt; text, ids and reason above are the first one's.
    choices: tuple[GenerationChoice, ...] = ()
    # Logprobs of the first answer and of the prompt (but its first token), if asked for.
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None


@attrs.define(eq=False)
class _Call:
    """A thread's `generate`, on its way through the loop's thread."""

    prompts: list[Prompt]
    params: SamplingParams | None
    engine: int | None = None
    # Called in the loop's thread whenever one has been answered.
    on_answered: Callable[[], None] = lambda: None
    # Outputs, then None, for `stream` alone. Bounded by the length of the answers.
    outputs: queue.SimpleQueue[GenerationOutput | None] | None = None
    # Cancelled when the thread that asked does not wait any more.
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    # Set last of all. Then there are results, or an error, or else the loop's end was quicker.
    done: threading.Event = attrs.field(factory=threading.Event, init=False)
    results: list[Completion] | None = attrs.field(default=None, init=False)
    error: Exception | None = attrs.field(default=None, init=False)

    def end(self) -> None:
        """There is nothing more to wait for."""
        self.done.set()
        if self.outputs is not None:
            self.outputs.put(None)


class LLM:
    """A model behind blocking calls; any thread may call, calls of many threads run side by side.

    The arguments are `open_runtime`'s; `verbose` prints a line to stderr as each process starts,
    is ready, or dies, where else only downloads are shown. Raises what `open_runtime` raises, in
    the constructor; when the runtime fails later, calls raise its error. An `LLM` must not be used
    from a trio task, which would block.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        settings: RuntimeSettings | None = None,
        in_process: bool = False,
        verbose: bool = False,
        on_event: OnEvent | None = None,
        **options: Unpack[RuntimeArguments],
    ) -> None:
        # Set in this order: the loop runs, the runtime is up or will never be.
        self._looping = threading.Event()
        self._opened = threading.Event()
        self._failure: BaseException | None = None
        self._runtime: Runtime | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        # The calls' nursery; None before the runtime is up and as soon as it goes down.
        self._nursery: trio.Nursery | None = None
        self._scope = trio.CancelScope()
        on_event = on_event or (LineReport(sys.stderr) if verbose else show_download)
        # Prompts for which there was no room; one is woken whenever another has been answered.
        self._room = trio.lowlevel.ParkingLot()
        opening = open_runtime(
            model, settings=settings, in_process=in_process, on_event=on_event, **options
        )
        self._thread = threading.Thread(
            target=self._run, args=(opening,), name="triolet-llm", daemon=False
        )
        self._thread.start()
        try:
            if not self._opened.wait(SILENT_START_S) and not verbose and sys.stderr.isatty():
                sys.stderr.write("the model is starting; verbose=True shows the steps\n")
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
        *,
        engine: int | None = None,
        progress: bool | None = None,
    ) -> list[Completion]:
        """Answer all prompts, in their order; one fails, all fail.

        Any number may be given: as many as the admission takes run at once, the others wait.
        A list of token ids is one prompt. `engine` is the rank of the one that is to answer.
        `progress` draws a bar on stderr; None does so for several prompts on a terminal. Raises as
        `Runtime.generate` does (a group if several prompts fail at once), and `LLMClosed`. Ctrl-C
        in the calling thread aborts its prompts.
        """
        _check_loop()
        many = _many(prompts)
        if progress is None:
            progress = len(many) > 1 and sys.stderr.isatty()
        with _bar(len(many), shown=progress) as advance:
            call = _Call(many, params, engine, advance)
            with self._calling(call):
                call.done.wait()
        return self._results(call)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        params: SamplingParams | None = None,
        *,
        tools: list[dict[str, Any]] | None = None,
        engine: int | None = None,
        progress: bool | None = None,
    ) -> list[Completion]:
        """Answer a conversation, or each of several: lists of `{"role": …, "content": …}`.

        As `generate`, with the model's chat template around the messages.
        """
        one_alone = bool(messages) and isinstance(messages[0], Mapping)
        many = cast(Sequence[Conversation], [messages] if one_alone else messages)
        prompts = [ChatPrompt([dict(each) for each in one], tools=tools) for one in many]
        return self.generate(prompts, params, engine=engine, progress=progress)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, engine: int | None = None
    ) -> Iterator[GenerationOutput]:
        """The outputs of one prompt as they come, each with new `text`; `chat` is a `ChatPrompt`.

        Leaving the loop early aborts the request. Raises as `generate` does.
        """
        _check_loop()
        outputs = queue.SimpleQueue[GenerationOutput | None]()
        call = _Call(_many(prompt), params, engine, outputs=outputs)
        if len(call.prompts) != 1:
            raise InvalidParameter("prompt", "must be one: stream is for a single prompt")
        with self._calling(call):
            while (output := outputs.get()) is not None:
                yield output
        self._results(call)

    def __repr__(self) -> str:
        if self._runtime is None or self._nursery is None:
            return "<LLM: closed>"
        return f"<LLM of {self._runtime.model_name}>"

    @contextmanager
    def _calling(self, call: _Call) -> Iterator[None]:
        """Around the wait for it; whatever ends that early aborts the call."""
        if not self._soon(self._start, call):
            raise self._failure or LLMClosed()
        try:
            yield
        finally:
            if not call.done.is_set():
                self._soon(call.scope.cancel, "the thread that asked waits no more")

    def _results(self, call: _Call) -> list[Completion]:
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

    def _run(self, opening: AbstractAsyncContextManager[Runtime]) -> None:
        try:
            trio.run(self._serve, opening)
        except BaseException as error:
            # Not lost: the constructor or the next call raises it in the caller's thread.
            self._failure = error
        finally:
            self._opened.set()

    async def _serve(self, opening: AbstractAsyncContextManager[Runtime]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._looping.set()
        with self._scope:
            async with opening as runtime, trio.open_nursery() as nursery:
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
            call.end()
        else:
            start_background_task_soon(self._nursery, self._answer, call, name="call")

    async def _answer(self, call: _Call) -> None:
        try:
            with call.scope, single_errors_unwrapped():
                call.results = await self._generate_all(call)
        except Exception as error:  # it is the caller's, in its own thread
            call.error = error
        finally:
            call.end()

    async def _generate_all(self, call: _Call) -> list[Completion]:
        results: list[Completion | None] = [None] * len(call.prompts)
        left = iter(enumerate(call.prompts))

        async def answer_next() -> None:
            for place, prompt in left:
                results[place] = await self._generate_one(prompt, call)
                call.on_answered()

        async with trio.open_nursery() as nursery:
            for _ in range(min(len(call.prompts), self._at_once(call.params))):
                nursery.start_soon(answer_next, name="prompts")
        return [result for result in results if result is not None]

    def _at_once(self, params: SamplingParams | None) -> int:
        """How many prompts are taken at once, if no other call has any."""
        assert self._runtime is not None
        choices = 1 if params is None else params.n
        return max(1, self._runtime.admission.limits.active_requests_max // choices)

    async def _generate_one(self, prompt: Prompt, call: _Call) -> Completion:
        """Answer one prompt as soon as there is room for it."""
        assert self._runtime is not None
        streaming = call.outputs is not None
        merge_s = 0.0 if streaming else WHOLE_MERGE_S
        while True:
            try:
                opened = self._runtime.generate(
                    prompt, call.params, streaming=streaming, merge_s=merge_s, engine=call.engine
                )
                async with opened as stream:
                    completion = await _completion(stream, call.outputs)
                self._room.unpark()
                return completion
            except Overloaded as full:
                with trio.move_on_after(full.retry_after_s):
                    await self._room.park()


def _check_loop() -> None:
    """A thread that runs a loop is the wrong one: that stands still until the answer is there.

    Of a notebook's loop everything waits anyway, as for any cell.
    """
    if trio.lowlevel.in_trio_run():
        raise RuntimeError(
            "LLM would block this trio loop: use triolet.open_runtime, or"
            " await trio.to_thread.run_sync(llm.generate, prompts)"
        )
    try:
        library = sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        return
    if "ipykernel" not in sys.modules:
        call = "await asyncio.to_thread(llm.generate, prompts)"
        text = f"LLM blocks this {library} loop until the answer is there; use {call}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)


@contextmanager
def _bar(prompts: int, *, shown: bool) -> Iterator[Callable[[], None]]:
    """A bar of answered prompts, advanced by calling what the block gets."""
    if not shown:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
    task = bar.add_task("prompts", total=prompts)

    def advance() -> None:
        bar.advance(task)
        bar.refresh()

    with bar:
        yield advance


def _many(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Text, a conversation, embeddings and a list of token ids are one prompt; a list is many."""
    if isinstance(prompts, str | ChatPrompt | PromptEmbeds):
        return [prompts]
    if not isinstance(prompts, Sequence) or (prompts and isinstance(prompts[0], Mapping)):
        raise InvalidParameter(
            "prompts",
            "must be text, token ids, a ChatPrompt, or a list of those; messages are for LLM.chat",
        )
    if prompts and isinstance(prompts[0], int):
        return [cast(Prompt, prompts)]
    return list(cast(Sequence[Prompt], prompts))


async def _completion(
    stream: GenerationStream, outputs: queue.SimpleQueue[GenerationOutput | None] | None
) -> Completion:
    """The whole answer; its pieces go where they are waited for."""
    if outputs is not None:
        async for output in stream:
            outputs.put(output)
    await stream.collect()
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
