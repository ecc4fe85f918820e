"""Simulated clients: each asks until it has its answer, leaves, or gets a typed error.

A stream is read in the process of its frontend, and dies with it; its client then asks the next
life of that frontend again.
"""

import math

import attrs
import trio

from ...engine.errors import EngineDied
from ...runtime.errors import NoEngine
from ...runtime.text.outputs import GenerationOutput
from .kernel import SimProcess
from .plan import Request
from .processes import FrontendParts
from .scene import Scene
from .streams import Piece, StreamHistory, Violation, params_of, want

# A client that is refused for want of an engine asks again.
AGAIN_S = 0.2
# From an engine's READY to when every frontend can send to it; longer than links take to come up.
SERVES_AFTER_S = 5.0


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
            if not history.end:  # refused
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
        except EngineDied as error:
            if process.is_alive:
                self._judge_death(process, history, error)
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
        )
        async with opened as stream:
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
        logprobs = output.logprobs
        history.take(
            Piece(
                output.index,
                list(output.token_ids),
                output.token_count,
                None if output.finish_reason is None else str(output.finish_reason),
                output.stop_reason,
                None if logprobs is None else [(each.token_id, each.logprob) for each in logprobs],
            )
        )
        self.scene.trace.note(f"{history.request.name} {output.index} {output.token_ids}")
        self.scene.note_tokens(len(output.token_ids))

    def _judge_death(self, process: SimProcess, history: StreamHistory, error: EngineDied) -> None:
        """A stream may end by its engine's death only where no other engine could take it over."""
        now = trio.current_time()
        for rank, (epoch, since) in self.scene.ready.items():
            disturbed = self.scene.disturbed.get((process.rank, rank), -math.inf)
            alive = any(
                each.is_alive and (each.role, each.rank, each.epoch) == ("engine", rank, epoch)
                for each in self.scene.kernel.processes
            )
            if alive and now - max(since, disturbed) > SERVES_AFTER_S:
                raise Violation(f"{history.request.name} died, and engine {rank} serves: {error}")
