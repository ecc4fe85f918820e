"""`triolet run`: a conversation in the terminal, over the embedded runtime.

Ctrl-C ends the answer, not the program; Ctrl-D or /bye ends the program. Input is read in a thread,
so that engines and their deaths are seen while the person thinks. Must not know HTTP.
"""

import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import attrs
import trio

from ...engine.errors import EngineError
from ...engine.sampling_params import SamplingParams
from ...runtime.events import OnEvent
from ...runtime.generation import ChatPrompt
from ...runtime.runtime import Runtime, open_runtime

_BYE = ("/bye", "/exit", "/quit")
MakeReport = Callable[[], AbstractContextManager[OnEvent]]


async def chat(
    model: str | None,
    system: str,
    params: SamplingParams,
    options: dict[str, Any],
    make_report: MakeReport,
) -> None:
    """Talk until the person leaves. Raises what `open_runtime` raises."""
    with make_report() as report:
        opened = open_runtime(model, on_event=report, **options)
        async with opened as runtime:
            print(f"{runtime.model_name}: say something; /bye leaves, Ctrl-C stops an answer")
            await Conversation(runtime, params, system).run()


@attrs.define(eq=False)
class Conversation:
    """The messages so far, and the loop of question and answer."""

    runtime: Runtime
    params: SamplingParams
    system: str
    _messages: list[dict[str, Any]] = attrs.field(factory=list, init=False)

    async def run(self) -> None:
        """Question, answer, until the person leaves."""
        if self.system:
            self._messages.append({"role": "system", "content": self.system})
        with trio.open_signal_receiver(signal.SIGINT) as interrupts:
            while (question := await self._ask()) is not None:
                if question:
                    await self._answer(question, interrupts)

    async def _ask(self) -> str | None:
        """One line; None at its end. The thread stays behind in `readline` if we are cancelled."""
        sys.stdout.write("> ")
        sys.stdout.flush()
        line = await trio.to_thread.run_sync(
            sys.stdin.readline, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
        )
        if not line or line.strip() in _BYE:
            return None
        return str(line.strip())

    async def _answer(self, question: str, interrupts: Any) -> None:
        self._messages.append({"role": "user", "content": question})
        text = ""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_at_interrupt, nursery.cancel_scope, interrupts)
            try:
                prompt = ChatPrompt(self._messages)
                async with self.runtime.generate(prompt, self.params) as stream:
                    async for output in stream:
                        text += output.text
                        sys.stdout.write(output.text)
                        sys.stdout.flush()
            except EngineError as error:
                print(f"\n[{error}]", end="")
            nursery.cancel_scope.cancel("the answer is complete")
        print()
        self._messages.append({"role": "assistant", "content": text})


async def _cancel_at_interrupt(scope: trio.CancelScope, interrupts: Any) -> None:
    async for _ in interrupts:
        scope.cancel("the person pressed Ctrl-C")
        return
