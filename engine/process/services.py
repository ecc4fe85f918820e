"""Background tasks of an engine, in a process of its own or in its host's.

    input-handler     messages of frontends become calls
    orphan-watch      gives up homes whose frontend stays away
    statistics        reports counts to them
    utilities         answers their calls
    grammar-compiler  compiles, in a thread, the grammars of requests
    step-loop         schedule, compute, finish, deliver

Each is a service: one that ends, for whatever cause, ends the engine. An engine that went on
without one of them would be silent, which is worse than dead.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from ...nurseries.processes.progress_page import ProgressSlot
from ...nurseries.tasks.service import open_service
from ..batch_table import BatchTable
from ..control_messages import EngineReady
from ..core.engine_core import EngineCore
from ..step_recorder import NO_RECORDER, StepRecorder
from .grammar_compiler import RunCompiler, run_grammar_compiler
from .server import EngineServer
from .step_loop import StepExecutor, run_step_loop


@asynccontextmanager
async def open_engine_services(
    server: EngineServer,
    executor: StepExecutor,
    recorder: StepRecorder = NO_RECORDER,
    progress: ProgressSlot | None = None,
    *,
    batches: BatchTable | None = None,
    run_compiler: RunCompiler = run_grammar_compiler,
) -> AsyncIterator[None]:
    """Serve the peers of the server's channel for the body of the block.

    The channel's own tasks and the executor are the caller's, and outlive the block.
    Raises what a task raises (`StepFailed`, `StepTimeout`, …), or `ServiceEnded` of one that was
    cancelled; the body is cancelled first.
    """
    async with (
        open_service(server.run_input, name="input-handler"),
        open_service(server.run_orphan_watch, name="orphan-watch"),
        open_service(server.run_statistics, name="statistics"),
        open_service(server.run_utilities, name="utilities"),
        open_service(partial(run_compiler, server, batches), name="grammar-compiler"),
        open_service(
            partial(
                run_step_loop,
                server,
                executor,
                recorder=recorder,
                progress=progress,
                batches=batches,
            ),
            name="step-loop",
        ),
    ):
        yield


def describe_engine(core: EngineCore) -> EngineReady:
    """Description for frontends of an engine that takes requests."""
    settings, workers = core.settings, core.ready
    return EngineReady(
        kv_blocks=workers.kv_blocks,
        block_tokens=settings.block_tokens,
        max_model_len=core.limits.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        vocab_size=workers.vocab_size,
        numerics_id=workers.numerics_id,
        bitwise=workers.bitwise,
        settings_digest=settings.digest(),
    )
