"""Reference of offline throughput: a process that runs transformers, and the messages with it.

The process dies with the block that opened it. This module does not import torch, which only the
process itself (`transformers_process`) may load.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from ...nurseries.processes.process import ProcessSpec, open_process
from ...transports.control.channel import ControlChannel

MODULE = "triolet.bench.serving.transformers_process"


@attrs.frozen(kw_only=True)
class OpenReference:
    """Load the model in `folder`; `threads` 0: as the library chooses."""

    folder: str
    threads: int


@attrs.frozen
class ReferenceOpened:
    """Loaded reference; what computes, with its version."""

    description: str


@attrs.frozen(kw_only=True)
class RunReference:
    """Answer these prompts as one batch, greedily, with exactly so many tokens each."""

    prompts: list[list[int]]
    tokens: int


@attrs.frozen(kw_only=True)
class ReferenceRun:
    """Run of the reference; `elapsed_s` is of the call alone, `cpu_s` of all threads in it."""

    elapsed_s: float
    cpu_s: float
    output_tokens: int


@attrs.frozen
class ReferenceFailed:
    """Failure of the reference; `reason` is for the person who asked."""

    reason: str


TO_REFERENCE = (OpenReference, RunReference)
FROM_REFERENCE = (ReferenceOpened, ReferenceRun, ReferenceFailed)


# Importing torch and transformers takes up to half a minute on a busy machine.
START_S = 120.0
# The longest batch that we measure takes it half a minute; with less than this nobody compares.
RUN_S = 1800.0


@attrs.frozen
class ReferenceUnusable(Exception):
    """Reference that cannot be run here; `reason` says why."""

    reason: str

    def __str__(self) -> str:
        return f"transformers cannot be compared with: {self.reason}"


@attrs.define(eq=False)
class Reference:
    """The yardstick, loaded. `description` names library and versions."""

    description: str
    pid: int
    _channel: ControlChannel

    async def run(self, prompts: list[list[int]], tokens: int) -> ReferenceRun:
        """Run a batch. Raises `ReferenceUnusable`."""
        try:
            with trio.fail_after(RUN_S):
                await self._channel.send(RunReference(prompts=prompts, tokens=tokens))
                answer, _ = await self._channel.receive()
        except (trio.EndOfChannel, trio.BrokenResourceError) as error:
            raise ReferenceUnusable("its process has ended") from error
        except trio.TooSlowError:
            raise ReferenceUnusable(f"a batch took more than {RUN_S:g} s") from None
        assert isinstance(answer, ReferenceRun)
        return answer


@asynccontextmanager
async def open_reference(folder: str, *, threads: int) -> AsyncIterator[Reference]:
    """Start it and load the model. Raises `ReferenceUnusable`."""
    spec = ProcessSpec("transformers", MODULE)
    async with open_process(spec) as process:
        with ControlChannel(
            process.control, sends=TO_REFERENCE, receives=FROM_REFERENCE
        ) as channel:
            answer: object = None
            try:
                with trio.move_on_after(START_S):
                    await channel.send(OpenReference(folder=folder, threads=threads))
                    answer, _ = await channel.receive()
            except (trio.EndOfChannel, trio.BrokenResourceError) as error:
                how = await process.wait_exited()
                raise ReferenceUnusable(how.cause) from error
            match answer:
                case ReferenceOpened(description=description):
                    yield Reference(description, process.pid, channel)
                case ReferenceFailed(reason=reason):
                    raise ReferenceUnusable(reason)
                case _:
                    raise ReferenceUnusable(f"it did not load the model within {START_S:g} s")
