"""Chat in the terminal, `triolet run`, over the embedded runtime.

Ctrl-C ends the answer, not the program; Ctrl-D or /bye ends the program. Input is read in a thread
(`lines`), so that engines and their deaths are seen while the person thinks.
"""

import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any

import attrs
import trio

from ...engine.errors import EngineError, PromptTooLong
from ...engine.sampling_params import SamplingParams
from ...nurseries.plain_text import for_terminal
from ...nurseries.tasks.background import start_background_task_soon
from ...runtime.events import OnEvent
from ...runtime.runtime import Runtime, open_runtime
from ...runtime.text.prompts import ChatPrompt
from .lines import PROMPT, Lines, PipedLines, open_lines
from .options import ChatOptions

_BYE = ("/bye", "/exit", "/quit")
_NEW, _HELP = "/new", "/help"
# A command begins so, and is not for the model; a path is none.
_COMMAND = re.compile(r"/[a-z]+(?=\s|$)")
GREETING = "say something; /help shows what else there is"
HELP = """/new            begin a new conversation
/help           show this
/bye            leave; /exit, /quit and Ctrl-D as well
Ctrl-C          stop an answer
arrows, Ctrl-R  earlier lines, and a search in them
A line that begins with a space is sent as it is, also if a / follows."""
NEW = "(a new conversation)"
TOO_LONG = f"{_NEW} begins a new conversation"
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
            await TerminalChat(runtime, params, options.system, open_lines()).run()


@attrs.define(eq=False)
class TerminalChat:
    """The messages so far, and the loop of question and answer."""

    runtime: Runtime
    params: SamplingParams
    system: str
    lines: Lines = attrs.field(factory=PipedLines)
    messages: list[dict[str, Any]] = attrs.field(factory=list, init=False)

    async def run(self) -> None:
        """Question, answer, until the person leaves."""
        self.begin()
        # Open all the time: between question and answer Ctrl-C must not end the program either.
        with trio.open_signal_receiver(signal.SIGINT) as interrupts:
            while (question := await self._ask(interrupts)) is not None:
                if command := _COMMAND.match(question):
                    self._obey(command[0])
                elif question.strip():
                    await self._answer(question.strip(), interrupts)

    def begin(self) -> None:
        """Forget what was said, but for the system message."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def _obey(self, command: str) -> None:
        if command == _NEW:
            self.begin()
            print(NEW)
        elif command == _HELP:
            print(HELP)
        else:
            print(f"there is no command {command}; {_HELP} shows them")

    async def _ask(self, interrupts: AsyncIterator[int]) -> str | None:
        """Ask for a line; None at the end."""
        async with trio.open_nursery() as nursery:
            # Taken here, as they must not stop the next answer.
            start_background_task_soon(nursery, _hint_at_interrupt, interrupts, name="interrupts")
            line = await self._read()
            nursery.cancel_scope.cancel("the person has said something")
        if line is None:
            print()  # the shell's prompt does not belong behind ours
            return None
        return None if line.strip() in _BYE else line

    async def _read(self) -> str | None:
        while True:
            try:
                return await self.lines.read()
            except KeyboardInterrupt:  # a key, and no signal, while a line is edited
                print(HINT)

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
            except PromptTooLong as error:
                print(f"[{error}; {TOO_LONG}]", end="")
            except EngineError as error:
                print(f"\n[{error}]", end="")
            nursery.cancel_scope.cancel("the answer is complete")
        print()
        if texts:
            self.messages = [*asked, {"role": "assistant", "content": "".join(texts)}]


def _show(text: str) -> None:
    """A terminal gets no escapes of a model; a pipe gets the text as it is."""
    sys.stdout.write(for_terminal(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


async def _hint_at_interrupt(interrupts: AsyncIterator[int]) -> None:
    async for _ in interrupts:
        _show(f"\n{HINT}\n{PROMPT}")


async def _cancel_at_interrupt(scope: trio.CancelScope, interrupts: AsyncIterator[int]) -> None:
    async for _ in interrupts:
        scope.cancel("the person pressed Ctrl-C")
        return
