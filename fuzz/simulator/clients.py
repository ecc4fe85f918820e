"""Simulated clients: each asks until it has its answer, leaves, or gets a typed error.

A stream is read in the process of its frontend, and dies with it; its client then asks the next
life of that frontend again.
"""

import attrs
import trio

from ...engine.errors import EngineDied, EngineDraining, EngineError
from ...runtime.errors import NoEngine, RequestQuarantined
from ...runtime.text.outputs import GenerationOutput
from .kernel import SimProcess
from .plan import Request
from .processes import FrontendParts
from .scene import Scene
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
        life = 0
        while True:
            process = await self._wait_frontend(request.frontend)
            history = want(request, self.scene.model)
            life += 1
            over = trio.Event()
            process.start_soon(self._stream, process, history, f"{request.name}.{life}", over)
            await self._wait_over(process, over)
            if not over.is_set():
                self.scene.reached["stream lost with its frontend"] += 1
                continue
            if not history.end:  # it was not taken
                await trio.sleep(AGAIN_S)
                continue
            self.scene.trace.note(f"{request.name} {history.end}")
            self.scene.reached[f"stream {history.end}"] += 1
            return

    async def _wait_frontend(self, rank: int) -> SimProcess:
        while rank not in self.scene.frontends or not self.scene.frontends[rank].is_alive:
            await self.scene.frontend_up.wait()
        return self.scene.frontends[rank]

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

    async def _stream(
        self, process: SimProcess, history: StreamHistory, request_id: str, over: trio.Event
    ) -> None:
        """In the frontend's process: one stream from its asking to its end."""
        try:
            await self._read(process, history, request_id)
        except NoEngine:
            pass
        except RequestQuarantined:
            if process.is_alive:
                history.finish("refused")
        except (EngineDied, EngineDraining) as error:
            if process.is_alive:
                self._judge_death(history, error)
                history.finish("died")
        if process.is_alive:
            over.set()

    async def _read(self, process: SimProcess, history: StreamHistory, request_id: str) -> None:
        request = history.request
        parts = process.parts
        assert isinstance(parts, FrontendParts)
        params = params_of(request, self.scene.model)
        opened = parts.frontend.generate(
            list(request.prompt),
            params,
            request_id=request_id,
            streaming=request.streaming,
            priority=request.priority,
            inexact_ok=request.inexact_ok,
        )
        async with opened as stream:
            history.began_at = trio.current_time()
            self.scene.histories.append(history)
            with trio.move_on_after(request.patience_s) as patience:
                async for output in stream:
                    if not process.is_alive:
                        return
                    self._take(history, output)
                    if len(history.taken[0]) >= request.leaves_after:
                        history.finish("left")
                        return
                    if request.pause_s:
                        await trio.sleep(request.pause_s)
            if process.is_alive:
                history.finish("left" if patience.cancelled_caught else "finished")

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
        """A stream may end by its engine's death only where, for the whole time that it waits for
        another, none was there whose tokens it can have; or if it is what ends all of them.
        """
        if history.request.fatal_at is not None and not history.request.is_poison:
            return
        name, now = history.request.name, trio.current_time()
        began = now - self.scene.settings.replay.replay_wait_s
        if history.began_at > began + ROUNDING_S:
            raise Violation(f"{name} did not wait for an engine: {error}")
        for process, ready_at in self.scene.ready:
            served_s = min(process.died_at, now) - max(ready_at, began)
            if self._fits(process.rank, history) and served_s > SERVES_WITHIN_S:
                raise Violation(f"{name} ended, and {process} served {served_s:g} s: {error}")

    def _fits(self, rank: int, history: StreamHistory) -> bool:
        """Whether this engine gives the tokens that have come."""
        family = self.scene.family(rank)
        return all(any(one.family == family for one in left) for left in history.wanted)
