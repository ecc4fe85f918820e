"""Simulated clients: each asks until it has its answer, leaves, or gets a typed error.

A stream is read in the process of its frontend. When that dies its client comes back to the next
life of it and reads on, or asks that again if the stream cannot be resumed.
"""

import math
from collections.abc import Awaitable, Callable

import attrs
import trio

from ...engine.errors import EngineDied, EngineDraining, EngineError, InvalidParameter
from ...engine.messages import FinishReason
from ...engine.structured_outputs import StructuredOutputs
from ...runtime.errors import FormsUnavailable, NoEngine, RequestQuarantined
from ...runtime.frontend.adoption import AdoptedStream
from ...runtime.frontend.generation import GenerationStream
from ...runtime.text.outputs import GenerationOutput
from .kernel import SimProcess
from .plan import Form, Request
from .processes import FrontendParts
from .responses import KEPT_S
from .scene import REBUILD_DEATHS_MAX, Scene
from .streams import Piece, StreamHistory, Violation, params_of, want

# A client that is refused for want of an engine asks again.
AGAIN_S = 0.2
# An engine that was ready for so long took what waited for it; longer than links take to come up,
# and than they are cut.
SERVES_WITHIN_S = 10.0
ROUNDING_S = 1e-6


@attrs.define(eq=False)
class Clients:
    """All clients of one simulation."""

    scene: Scene

    async def run_client(self, request: Request) -> None:
        """One client: it asks until it has its answer, leaves, or gets a typed error."""
        await trio.sleep(request.at_s)
        life, reached = 0, self.scene.reached
        while True:
            life += 1
            history = want(request, self.scene.model, f"{request.name}.{life}")
            process = await self._run_in_frontend(self._ask, history)
            while not history.end and history.lives and not process.is_alive:
                reached["stream lost with its frontend"] += 1
                if not request.is_resumable:
                    history.end = "cut"
                elif request.back_after_s == math.inf:
                    history.end = "abandoned"
                else:
                    await trio.sleep(request.back_after_s)
                    process = await self._run_in_frontend(self._resume, history)
                    reached["came back"] += 1
            if history.end not in ("", "cut", "unserved"):
                break
            reached["stream unserved"] += history.end == "unserved"
            if history.end != "cut":  # no engine took it
                await trio.sleep(AGAIN_S)
        self.scene.trace.note(f"{history.name} {history.end}")
        reached[f"stream {history.end}"] += 1
        if history.end == "finished" and request.again_after_s < math.inf:
            await trio.sleep(request.again_after_s)
            if await self._wait_frontend(request.frontend) is not process:
                again = history.begin_again()
                await self._run_in_frontend(self._resume, again)
                reached[f"read again {again.end}"] += 1

    async def _run_in_frontend(
        self, act: Callable[["SimProcess", StreamHistory], Awaitable[None]], history: StreamHistory
    ) -> SimProcess:
        """Do it in the present life of its frontend, as far as that comes."""
        process, over = await self._wait_frontend(history.request.frontend), trio.Event()
        process.start_soon(self._firewalled, act, process, history, over)
        await self._wait_over(process, over)
        return process

    async def _wait_frontend(self, home: int) -> SimProcess:
        while home not in self.scene.frontends or not self.scene.frontends[home].is_alive:
            await self.scene.frontend_up.wait()
        return self.scene.frontends[home]

    async def _wait_over(self, process: SimProcess, over: trio.Event) -> None:
        """Until the stream is over or its process dead."""
        gone = trio.Event()
        process.on_cut.append(gone.set)
        async with trio.open_nursery() as nursery:

            async def wait(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel("one is enough")

            nursery.start_soon(wait, over)
            nursery.start_soon(wait, gone)

    async def _firewalled(
        self,
        act: Callable[[SimProcess, StreamHistory], Awaitable[None]],
        process: SimProcess,
        history: StreamHistory,
        over: trio.Event,
    ) -> None:
        """In the frontend's process: a client until it has its stream's end, or leaves."""
        end = ""
        error: EngineError | None = None
        try:
            await act(process, history)
        except NoEngine as failure:
            if history.lives:  # it was taken, and waited for one
                end, error = "unserved", failure
        except RequestQuarantined:
            end = "refused"
        except FormsUnavailable:
            end = "unserved"
        except (EngineDied, EngineDraining) as failure:
            end, error = "died", failure
        except Violation as violation:
            self.scene.fail(str(violation))
        if not process.is_alive:
            return
        if error is not None:
            self._judge_death(history, error)
        if end:
            history.finish(end)
        if history.end and history.end != "finished":
            _parts(process).responses.forget(history.name)
        over.set()

    async def _check(self, process: SimProcess, history: StreamHistory) -> bool:
        """Have the form of a request checked, as its frontend does; whether it is served."""
        assert isinstance(process.parts, FrontendParts)
        forms, wanted = process.parts.forms, history.request.form
        assert forms is not None, "it takes clients"
        # In each life of its request the same.
        form = StructuredOutputs.choice([f"{history.request.name} {wanted}"])
        try:
            await forms.check(form, "")
        except InvalidParameter as refusal:
            if process.is_alive and wanted is Form.SERVED:
                self.scene.fail(f"{history.name}: its form was refused: {refusal}")
            return False
        except FormsUnavailable:
            checker = self.scene.present("forms", process.rank)
            if process.is_alive and checker is not None:
                served_s = trio.current_time() - checker.watched_at
                if served_s > SERVES_WITHIN_S:
                    self.scene.fail(f"{history.name}: its form waits, and {checker} serves")
            raise
        if process.is_alive and wanted is not Form.SERVED:
            self.scene.fail(f"{history.name}: its form was not refused")
        return True

    async def _ask(self, process: SimProcess, history: StreamHistory) -> None:
        request, parts = history.request, _parts(process)
        if request.form is not None and not await self._check(process, history):
            if process.is_alive:
                history.finish("refused")
            return
        opened = parts.frontend.generate(
            list(request.prompt),
            params_of(request, self.scene.model),
            request_id=history.name,
            streaming=request.streaming,
            priority=request.priority,
            inexact_ok=request.inexact_ok,
            credit=request.grants,
            note=parts.responses.note(history.name, request),
        )
        try:
            async with opened as stream:
                if process.is_alive:
                    history.began_at = trio.current_time()
                    history.granted = history.granted_at_most = request.grants or 0
                    self.scene.histories.append(history)
                    history.begin_life()
                    await self._read(process, history, stream)
        finally:
            if not process.is_alive and not history.lives:
                self.scene.unseen[request.seed] += request.n

    async def _resume(self, process: SimProcess, history: StreamHistory) -> None:
        """Read on in a later life of its frontend, where that has it."""
        await trio.lowlevel.checkpoint()
        responses = _parts(process).responses
        adopted = responses.read(history.name)
        if not process.is_alive:
            return
        if adopted is None:
            is_due = trio.current_time() - responses.adopted_at >= KEPT_S - ROUNDING_S
            if not is_due and history.name not in self.scene.forgotten.names:
                raise Violation(f"{history.name} is not there any more")
            history.finish("gone")
        elif adopted.generation is None:
            if self.scene.killed_by[history.name] < REBUILD_DEATHS_MAX:
                raise Violation(f"{history.name} was given up, and ended no frontend")
            history.finish("lost")
        elif history.name in self.scene.forgotten.begun and _is_aborted(adopted):
            adopted.close()
            history.finish("gone")
        else:
            history.begin_life()
            async with adopted.open() as stream:
                await self._read(process, history, stream)

    async def _read(
        self, process: SimProcess, history: StreamHistory, stream: GenerationStream
    ) -> None:
        request = history.request
        with trio.move_on_after(request.patience_s) as patience:
            self._grant(process, history, stream)
            async for output in stream:
                if output.finish_reason is not None and not stream._open:
                    _parts(process).responses.end(history.name)
                if not process.is_alive:
                    return
                self._take(history, output)
                if len(history.taken[0]) >= request.leaves_after:
                    history.finish("left")
                    return
                self._grant(process, history, stream)
                if request.pause_s:
                    await trio.sleep(request.pause_s)
        if process.is_alive:
            history.finish("left" if patience.cancelled_caught else "finished")

    def _grant(self, process: SimProcess, history: StreamHistory, stream: GenerationStream) -> None:
        """Allow more when a choice is where it has to wait."""
        tokens = history.request.grants
        while tokens and max(map(len, history.taken)) >= history.granted:
            history.granted_at_most += tokens
            stream.grant(tokens)
            if not process.is_alive:
                return
            history.granted += tokens

    def _take(self, history: StreamHistory, output: GenerationOutput) -> None:
        logprobs, inexact = output.logprobs, sum(not event.exact for event in output.events)
        if inexact:
            self.scene.reached["inexact"] += 1
            self.scene.trace.note(f"{history.request.name} {output.index} goes on inexactly")
        history.take(
            Piece(
                output.index,
                list(output.token_ids),
                output.token_count,
                None if output.finish_reason is None else str(output.finish_reason),
                output.stop_reason,
                None if logprobs is None else [(each.token_id, each.logprob) for each in logprobs],
                inexact,
            )
        )
        self.scene.trace.note(f"{history.request.name} {output.index} {output.token_ids}")
        self.scene.note_tokens(len(output.token_ids))

    def _judge_death(self, history: StreamHistory, error: EngineError) -> None:
        """A stream may end by its engine's death, or for want of a first one, only where, for the
        whole time that it waits for another, none was there whose tokens it can have; or if it is
        what ends all of them.
        """
        if history.request.fatal_at is not None and not history.request.is_poison:
            return
        name, now = history.request.name, trio.current_time()
        began = now - self.scene.settings.replay.replay_wait_s
        if history.began_at > began + ROUNDING_S:
            self.scene.fail(f"{name} did not wait for an engine: {error}")
        for process, ready_at in self.scene.ready:
            served_s = min(process.died_at, now) - max(ready_at, began)
            if self._fits(process.rank, history) and served_s > SERVES_WITHIN_S:
                self.scene.fail(f"{name} ended, and {process} served {served_s:g} s: {error}")

    def _fits(self, rank: int, history: StreamHistory) -> bool:
        """Whether this engine gives the tokens that have come."""
        family = self.scene.family(rank)
        return all(any(one.family == family for one in left) for left in history.wanted)


def _is_aborted(adopted: AdoptedStream) -> bool:
    """Whether a choice was ended by the frontend alone."""
    ends = [choice.end for choice, _ in adopted.choices()]
    return any(end is not None and end.finish_reason is FinishReason.ABORT for end in ends)


def _parts(process: SimProcess) -> FrontendParts:
    assert isinstance(process.parts, FrontendParts)
    return process.parts
