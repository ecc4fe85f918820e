"""Time from the SIGKILL of a worker to a ready one in its place, for models of three sizes.

    python -m triolet.bench worker_death [--rounds 4]

The engine's own side of its workers, with the spare worker and the memory that it has under
`triolet serve`: weights of 18 MiB, 300 MiB and 2.9 GiB, and 1 GiB of keys and values each. The time
has the end of the killed one in it, whose memory the kernel has to unmap first.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence

import attrs
import trio

from ...engine.config import BLOCK_TOKENS, EngineSettings
from ...engine.place_memory import open_memory_of_places
from ...engine.process.executor import LOSSES_MAX, Executor
from ...engine.process.main import spare_workers
from ...nurseries.processes.process import Process
from ...nurseries.processes.progress_page import open_page
from ...nurseries.tasks.parking import Doorbell
from ...nurseries.tasks.service import open_service
from ..steps.shapes import SMALL, TINY, Shape
from .words import argument_parser, at_least_one

LARGE = attrs.evolve(
    SMALL, name="large", hidden_size=2048, intermediate_size=6144, layers=30, heads=16
)
KV_BYTES = 2**30
# A spare worker is there by then: it settles, starts, and imports.
SPARE_S = 2.5


@contextlib.contextmanager
def memory() -> Iterator[list[int]]:
    """Descriptors of an engine beside INIT: its page, and the memory of its place."""
    with open_page(2) as page, open_memory_of_places() as (place,):
        yield [page.fd, *place.fds]


def settings_of(shape: Shape, folder: pathlib.Path) -> EngineSettings:
    """Random weights, which need no file, and a cache of `KV_BYTES`."""
    (folder / "config.json").write_text(json.dumps(shape.config()))
    block_bytes = 2 * 2 * shape.layers * shape.kv_heads * shape.head_dim * BLOCK_TOKENS
    return EngineSettings(
        model=str(folder),
        executor="native",
        load_format="dummy",
        kv_blocks=KV_BYTES // block_bytes,
    )


async def kill_workers(settings: EngineSettings, fds: Sequence[int]) -> list[float]:
    """Milliseconds of as many deaths as an engine takes without a step between them."""
    workers: list[Process] = []
    found = []

    async def note(processes: Sequence[Process]) -> None:
        workers[:] = processes

    spares, lost = spare_workers(settings), Doorbell()
    executor = Executor(
        settings,
        1,
        on_progress=lambda rank, phase, fraction: None,
        on_workers=note,
        on_loss=lost.ring,
        engine_fds=fds,
        spares=spares,
    )
    async with trio.open_nursery() as nursery, open_service(executor.run, name="executor"):
        spares.start(nursery)
        for _ in range(LOSSES_MAX):
            await trio.sleep(SPARE_S)
            began = time.monotonic()
            workers[0].send_signal(signal.SIGKILL)
            await lost.wait()
            await executor.replaced(1)
            found.append((time.monotonic() - began) * 1e3)
        nursery.cancel_scope.cancel("all were killed")
    return found


def main() -> None:
    """Kill, and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=at_least_one, default=4, help=f"of {LOSSES_MAX} kills")
    options: argparse.Namespace = parser.parse_args()
    for shape in (TINY, SMALL, LARGE):
        times = []
        with tempfile.TemporaryDirectory() as folder, memory() as fds:
            settings = settings_of(shape, pathlib.Path(folder))
            for _ in range(options.rounds):
                times += trio.run(kill_workers, settings, fds)
            weights, cache = (os.fstat(fd).st_size // 2**20 for fd in fds[1:3])
        print(
            f"weights {weights} MiB, KV cache {cache} MiB: {statistics.median(times):.0f} ms"
            f" ({min(times):.0f} to {max(times):.0f}; target ≤ 50)",
            flush=True,
        )


if __name__ == "__main__":
    main()
