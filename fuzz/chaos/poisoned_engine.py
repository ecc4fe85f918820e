"""An engine as any other, but for its poisons: see `poisoned_worker` and `poisoned_forms`."""

from functools import partial

from ...engine.config import EngineSettings
from ...engine.process.executor import Executor
from ...engine.process.grammar_compiler import run_grammar_compiler
from ...engine.process.main import EngineProcess, main, spare_workers
from ...nurseries.processes.child import run_child
from ...nurseries.processes.spares import Spares
from .poisoned_forms import PoisonedCompiler

WORKER_MODULE = f"{__package__}.poisoned_worker"


def spare_poisoned_workers(settings: EngineSettings) -> Spares:
    """As those of other engines."""
    spares = spare_workers(settings)
    spares.module = WORKER_MODULE
    return spares


if __name__ == "__main__":
    make = partial(
        EngineProcess,
        make_executor=partial(Executor, worker_module=WORKER_MODULE),
        make_spares=spare_poisoned_workers,
        run_compiler=partial(run_grammar_compiler, make=PoisonedCompiler),
    )
    run_child(partial(main, make=make))
