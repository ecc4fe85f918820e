"""Memory of a server's worker: weights once, KV as configured, and no growth over many requests.

    python -m triolet.bench memory
    python -m triolet.bench memory 2000            # fewer requests

The small shape is served three times: with N and with 2 N blocks of KV, whose difference must be N
blocks; what is left without them and a worker that computes nothing is weights, activations and
libraries. Then the bundled model answers 10 000 requests over
HTTP: memory of every process is told before, on the way and at the end. Proportional set size:
shared pages count once in all.
"""

import pathlib

from ...engine.model_config.config import load_model_config
from ...fuzz.observers import costs_of_tree
from ..load.schedule import Load
from ..options import Protocol
from ..steps.machine import look_at_machine
from ..steps.shapes import SMALL, shape_folder
from ..steps.step_driver import VALUE_BYTES, ModelSizes
from .serving import open_server
from .words import argument_parser, at_least_one

MIB = 2**20
BLOCKS = 256
BLOCK_TOKENS = 16
REQUESTS = 10_000
# After so many every buffer has its size.
WARM_REQUESTS = 1000
PARTS = 4


def proportional_mib(pid: int) -> float:
    """Memory of one process, its share of what is shared."""
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no Pss")


def _by_process(root: int) -> dict[str, float]:
    return {name: proportional_mib(cost.pid) for name, cost in costs_of_tree(root).items()}


def _worker_mib(*options: str, executor: str = "") -> float:
    folder = str(shape_folder(SMALL))
    with open_server(folder, *options, executor=executor) as server:
        server.press(Load(requests=4, in_flight=4, tokens=4), Protocol.HTTP)
        pid = costs_of_tree(server.pid)["worker"].pid
        return proportional_mib(pid)


def weights_and_kv() -> None:
    """Print what a worker of the small shape holds."""
    sizes = ModelSizes.of(load_model_config(shape_folder(SMALL)))
    token = 2 * VALUE_BYTES * sizes.layers * sizes.kv_heads * sizes.head_size
    weights = (shape_folder(SMALL) / "model.safetensors").stat().st_size / MIB
    one, two = (_worker_mib("--kv-blocks", str(count)) for count in (BLOCKS, 2 * BLOCKS))
    empty = _worker_mib(executor="null")
    kv = BLOCKS * BLOCK_TOKENS * token / MIB
    print(f"KV of {BLOCKS} blocks more: {two - one:.1f} MiB; {kv:.1f} are configured")
    rest = one - kv - empty
    print(
        f"worker without its interpreter and KV: {rest:.0f} MiB; the weights have {weights:.0f}"
        f" ({rest / weights:.2f} ×)"
    )


def growth(requests: int) -> None:
    """Print memory over many requests."""
    with open_server(executor="") as server:

        def press(count: int, seed: int) -> None:
            load = Load(requests=count, in_flight=32, prompt_words=12, tokens=4, seed=seed)
            server.press(load, Protocol.HTTP)

        press(min(WARM_REQUESTS, requests), 1)
        begun = _by_process(server.pid)
        print(f"MiB after {min(WARM_REQUESTS, requests)} requests: {_line(begun)}", flush=True)
        for part in range(1, PARTS + 1):
            press(requests // PARTS, 1000 * part)
            now = _by_process(server.pid)
            print(f"    after {requests * part // PARTS} more: {_line(now)}", flush=True)
        grown = {name: mib - begun[name] for name, mib in now.items() if name in begun}
        print(f"growth: {_line(grown)}; target 0")


def _line(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {mib:.1f}" for name, mib in values.items())


def main() -> None:
    """Print the tables."""
    parser = argument_parser(__doc__)
    parser.add_argument("requests", nargs="?", type=at_least_one, default=REQUESTS)
    options = parser.parse_args()
    print(look_at_machine().describe())
    weights_and_kv()
    growth(options.requests)


if __name__ == "__main__":
    main()
