"""Chat in the terminal, `triolet run`, over the embedded runtime.

Ctrl-C ends the answer, not the program; Ctrl-D or /bye ends the program. Input is read in a thread,
so that engines and their deaths are seen while the person thinks.
"""

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any

import attrs
import trio

from ...engine.errors import EngineError
from ...engine.sampling_params import SamplingParams
from ...nurseries.tasks.background import start_background_task_soon
from ...runtime.events import OnEvent
from ...runtime.runtime import Runtime, open_runtime
from ...runtime.text.prompts import ChatPrompt
from .options import ChatOptions

_BYE = ("/bye", "/exit", "/quit")
_NEW = "/new"
GREETING = "say something; /new begins anew, Ctrl-D or /bye leaves, Ctrl-C stops an answer"
HINT = "(Ctrl-D or /bye leaves)"


async def chat(
    model: str | None,
    options: ChatOptions,
    *,
    engine: dict[str, Any],
    report: AbstractContextManager[OnEvent],
) -> None:
    """Talk until the person leaves. Raises what `open_runtime` raises."""
    params = SamplingParams(
        temperature=options.temperature, max_tokens=options.max_tokens, seed=options.seed
    )
    with report as on_event:
        async with open_runtime(model, on_event=on_event, **engine) as runtime:
            print(f"{runtime.model_name}: {GREETING}")
            await TerminalChat(runtime, params, options.system).run()


@attrs.define(eq=False)
class TerminalChat:
    """The messages so far, and the loop of question and answer."""

    runtime: Runtime
    params: SamplingParams
    system: str
    messages: list[dict[str, Any]] = attrs.field(factory=list, init=False)

    async def run(self) -> None:
        """Question, answer, until the person leaves."""
        self.begin()
        # Open all the time: between question and answer Ctrl-C must not end the program either.
        with trio.open_signal_receiver(signal.SIGINT) as interrupts:
            while (question := await self._ask(interrupts)) is not None:
                if question == _NEW:
                    self.begin()
                elif question:
                    await self._answer(question, interrupts)

    def begin(self) -> None:
        """Forget what was said, but for the system message."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    async def _ask(self, interrupts: AsyncIterator[int]) -> str | None:
        """One line; None at the end. The thread stays behind in `readline` if we are cancelled."""
        _show("> ")
        async with trio.open_nursery() as nursery:
            # Taken here, as they must not stop the next answer.
            start_background_task_soon(nursery, _hint_at_interrupt, interrupts, name="interrupts")
            line = await trio.to_thread.run_sync(
                sys.stdin.readline, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
            )
            nursery.cancel_scope.cancel("the person has said something")
        if not line:
            print()  # the shell's prompt does not belong behind ours
            return None
        return None if line.strip() in _BYE else str(line.strip())

    async def _answer(self, question: str, interrupts: AsyncIterator[int]) -> None:
        """Answer, as far as the person lets us; what was said is remembered, a failure is not."""
        asked = [*self.messages, {"role": "user", "content": question}]
        texts: list[str] = []
        async with trio.open_nursery() as nursery:
            start_background_task_soon(
                nursery, _cancel_at_interrupt, nursery.cancel_scope, interrupts, name="interrupts"
            )
            try:
                async with self.runtime.generate(ChatPrompt(asked), self.params) as stream:
                    async for output in stream:
                        texts.append(output.text)
                        _show(output.text)
            except EngineError as error:
                print(f"\n[{error}]", end="")
            nursery.cancel_scope.cancel("the answer is complete")
        print()
        if texts:
            self.messages = [*asked, {"role": "assistant", "content": "".join(texts)}]


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


async def _hint_at_interrupt(interrupts: AsyncIterator[int]) -> None:
    async for _ in interrupts:
        _show(f"\n{HINT}\n> ")


async def _cancel_at_interrupt(scope: trio.CancelScope, interrupts: AsyncIterator[int]) -> None:
    async for _ in interrupts:
        scope.cancel("the person pressed Ctrl-C")
        return
