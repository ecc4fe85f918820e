"""The architecture as a test: each test's name is a sentence about who may import whom."""

import ast
import graphlib
import re
import tomllib

import pytest

from .house import FLOORS, ROOT, Module, house_modules, house_target

BELOW = {
    "nurseries": set[str](),
    "transports": set[str](),
    "engine": {"nurseries", "transports"},
    "runtime": {"nurseries", "transports", "engine"},
    "api": {"nurseries", "transports", "engine", "runtime"},
    "fuzz": {"nurseries", "transports", "engine", "runtime", "api"},
    "bench": {"nurseries", "transports", "engine", "runtime", "api", "fuzz"},
    # What made the bundled model; not in the wheel.
    "tools": {"engine", "runtime"},
}
# The rooms of each floor from the lowest up: a folder, or a module on top of its floor. One imports
# only those before it, and itself.
ROOMS = {
    "nurseries": ["plain_text", "tasks", "logs", "processes"],
    "transports": [
        "array", "endpoint", "publication", "codec", "sparse_memory", "links", "control", "rings",
        "takeover",
    ],
    "engine": [
        "errors", "host", "embeddings", "structured_outputs", "grammar", "parameter_bounds",
        "request_options", "sampling_params", "model_config", "config", "messages",
        "control_messages", "batch_table",
        "step_messages", "block_names", "place_memory", "step_recorder", "model", "kernels",
        "worker", "core", "process",
    ],
    "engine.worker": [
        "kv_plan", "executor_interface", "step_inputs", "input_batch", "numerics",
        "null", "torch", "native", "step_loop", "executors", "process", "native_process",
        "torch_process",
    ],
    "runtime": [
        "errors", "events", "event_lines", "control", "messages", "hands", "config", "arguments",
        "hub", "forms", "text", "journal", "launch", "continuity", "fleet", "hosts", "launchers",
        "frontend", "runtime", "llm",
    ],
    "api": [
        "errors", "settings", "connection_shares", "access_log", "throughput", "counters", "totals",
        "host_metrics", "metrics", "span_export", "schema", "http", "openai", "anthropic",
        "root_calls",
        "streams", "responses", "completions", "viewers", "commands", "application", "routes",
        "websocket", "serving", "frontend_home", "frontend_process",
    ],
    "fuzz": [
        "drawing", "fuzzer", "contained", "observers", "other_process", "server_process",
        "doubles", "chaos", "kv_accounting", "simulator",
        "fuzzers", "__main__",
    ],
    "bench": [
        "options", "load", "serving", "steps", "tables", "commands", "parts",
        "entry_points", "__main__",
    ],
    "tools": ["bundled_model", "constraints"],
}  # fmt: skip
# Packages that no wheel has.
OF_A_CHECKOUT = ("triolet.fuzz.fuzzers", "triolet.fuzz.simulator")
ENGINE_FACE = {
    "config", "messages", "control_messages", "parameter_bounds", "request_options",
    "sampling_params", "model_config",
    "errors", "structured_outputs", "grammar", "embeddings", "host", "batch_table", "block_names",
    "place_memory",
}  # fmt: skip
# What a machine that decides must not touch: clocks, sockets, processes, loops, devices.
IMPURE = {
    "trio", "socket", "select", "zmq", "time", "torch", "subprocess", "threading", "mmap",
    "signal", "secrets", "trio_websocket", "h11", "os",
}  # fmt: skip
BANNED = {"asyncio", "multiprocessing", "pickle", "cloudpickle", "marshal", "shelve", "threading"}
# Where a banned module is the lesser evil, and why.
BANNED_EXCEPT = {
    ("triolet.bench.parts.bridge", "asyncio"),  # what the bridge is compared with
    ("triolet.bench.parts.step_ring", "multiprocessing"),  # whose pipe the ring is compared with
    ("triolet.runtime.llm", "threading"),  # the blocking face runs trio in a thread of its own
    (
        "triolet.nurseries.processes.process",
        "threading",
    ),  # asserts the spawning thread; starts none
}

# The yardstick of a benchmark, a process of its own that nothing of the house computes with; and
# what lets a fuzzer press the torch runner, inside a function.
TORCH_BESIDE = ("triolet.bench.serving.transformers_process", "triolet.fuzz.doubles.given_logits")


# What the kernel calls things: processes, memory without a file, descriptors that are passed.
OF_THE_KERNEL = re.compile(r"(^|_)(pids?|pidfds?|memfds?|fds?)(_|$)|^SCM_RIGHTS$")
# Where such names may stand, and why: elsewhere there are children, places and connections, so that
# a simulation may stand in for each, and one that reads on need not know the kernel.
KNOW_THE_KERNEL = {
    "runtime.launch": "a child is a process here",
    "runtime.launchers": "a host may be a process of this machine",
    "runtime.continuity": "what outlives a process is kept open",
    "runtime.journal": "a journal is memory, or a file, that outlives its writer",
    "transports.control": "passes descriptors between processes",
    "transports.rings": "memory that two processes share",
    "transports.sparse_memory": "memory that is passed",
    "transports.takeover": "slots and counts of connections that are passed",
    # Processes take what they were started with.
    "api.frontend_process": "INIT comes with descriptors",
    "api.frontend_home": "its journal, slots and counters",
    "api.totals": "counters in memory of the root",
    "api.http.held": "a connection that the root holds, too",
    "runtime.forms.form_process": "INIT, and links that come later",
    "runtime.hands": "its table on the progress page",
    "runtime.hub": "a download is a process",
    "engine.process": "an engine starts its workers",
    "engine.worker.process": "INIT, rings and memory of an engine",
    "engine.worker.step_loop": "an engine's page",
    "engine.worker.native": "weights and blocks that outlive a worker",
    "engine.kernels.shared_memory": "weights and blocks that outlive a worker",
    "engine.place_memory": "memory of a place, for each engine that has it",
    "engine.block_names": "a table in that memory",
    "engine.batch_table": "its table on the progress page",
    "engine.control_messages": "workers, as the root waits for them",
    "engine.host": "what the machine has",
    # Commands find servers, and people send signals.
    "api.commands": "a command looks for processes, and at terminals",
    "api.routes.admin": "answers which process got a signal",
    "runtime.control": "servers are found by what their roots left",
}


def _internal(module: Module) -> set[tuple[str, int]]:
    found = set()
    for item in module.imports:
        target = house_target(item.target)
        if target is not None:
            found.add((target, item.line))
    return found


def _room(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def test_a_floor_imports_only_floors_below_it() -> None:
    wrong = [
        f"{module.name}:{line} imports {target}"
        for module in house_modules()
        if module.room in FLOORS
        for target, line in _internal(module)
        if _room(target) not in BELOW[module.room] | {module.room, ""}
    ]
    assert not wrong


def _place(module: str, floor: str) -> str:
    """Which room of the floor a module is in; nothing if it is not on the floor."""
    name = module.removeprefix(f"triolet.{floor}.")
    return "" if name == module else name.split(".")[0]


@pytest.mark.parametrize("floor", ROOMS)
def test_a_room_imports_only_rooms_below_it_on_its_floor(floor: str) -> None:
    rooms = ROOMS[floor]
    places = {place for m in house_modules() if (place := _place(m.name, floor))}
    assert places == set(rooms)
    wrong = [
        f"{module.name}:{item.line} imports {target}"
        for module in house_modules()
        for item in module.imports
        if not item.type_only and (target := house_target(item.target)) is not None
        if (place := _place(module.name, floor)) and (other := _place(target, floor))
        if place != other and rooms.index(other) > rooms.index(place)
    ]
    assert not wrong


def test_runtime_and_api_see_only_the_public_face_of_the_engine() -> None:
    wrong = [
        f"{module.name}:{line} imports {target}"
        for module in house_modules()
        if module.room in ("runtime", "api")
        for target, line in _internal(module)
        if _room(target) == "engine"
        and target != "triolet.engine"
        and target.split(".")[2] not in ENGINE_FACE
        and not target.startswith(
            (
                "triolet.engine.model.bundled",
                "triolet.engine.kernels.library",  # these two by `triolet doctor`
                "triolet.engine.kernels.shared_memory",
            )
        )
    ]
    assert not wrong


def test_engine_core_and_worker_never_import_each_other() -> None:
    of_worker = ("triolet.engine.worker", "triolet.engine.model.", "triolet.engine.kernels.")
    wrong = []
    for module in house_modules():
        inside_worker = module.name.startswith(of_worker)
        for target, line in _internal(module):
            to_worker = target.startswith(of_worker)
            if module.room == "engine" and to_worker and not inside_worker:
                wrong.append(f"{module.name}:{line} imports {target}")
            if inside_worker and target.startswith("triolet.engine.core"):
                wrong.append(f"{module.name}:{line} imports {target}")
    assert not wrong


def test_torch_is_imported_in_worker_and_model_alone() -> None:
    wrong = [
        f"{module.name}:{item.line}"
        for module in house_modules()
        for item in module.imports
        if item.target.split(".")[0] in ("torch", "safetensors", "transformers")
        and not module.name.startswith(("triolet.engine.worker.", "triolet.engine.model."))
        and module.room != "tools"
        and module.name not in TORCH_BESIDE
    ]
    assert not wrong


def test_ray_is_in_the_process_of_a_placer_alone() -> None:
    importers = {
        module.name
        for module in house_modules()
        for item in module.imports
        if item.target.split(".")[0] == "ray"
    }
    assert importers == {"triolet.runtime.launchers.ray_process"}


def test_sans_io_modules_import_no_loop_clock_socket_or_device() -> None:
    wrong = [
        f"{module.name}:{item.line} imports {item.target}"
        for module in house_modules()
        if module.sans_io
        for item in module.imports
        if item.target.split(".")[0] in IMPURE and not item.type_only
    ]
    assert not wrong


def test_engine_core_is_sans_io_throughout() -> None:
    wrong = [
        module.name
        for module in house_modules()
        if module.name.startswith("triolet.engine.core.") and not module.sans_io
    ]
    assert not wrong


def test_banned_modules_are_imported_nowhere() -> None:
    wrong = [
        f"{module.name}:{item.line} imports {item.target}"
        for module in house_modules()
        for item in module.imports
        if item.target.split(".")[0] in BANNED
        and (module.name, item.target.split(".")[0]) not in BANNED_EXCEPT
    ]
    assert not wrong


def test_imports_have_no_cycle() -> None:
    graph = {
        module.name: {
            target
            for item in module.imports
            if not item.type_only and (target := house_target(item.target)) is not None
            if target != module.name and target.count(".") >= 1
        }
        for module in house_modules()
        if module.name != "triolet"
    }
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


def test_inside_the_house_imports_are_relative() -> None:
    wrong = [
        f"{module.name}: {line.strip()}"
        for module in house_modules()
        for line in module.source.splitlines()
        if line.lstrip().startswith(("from triolet", "import triolet"))
    ]
    assert not wrong


def test_what_is_reached_by_name_exists() -> None:
    """Processes and the in-process engine's executor are reached by dotted name."""
    names = {
        node.value
        for module in house_modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(r"triolet(\.[a-z_]+)+", node.value)
    }
    assert {"triolet.engine.process.main", "triolet.api.frontend_process"} <= names
    known = {module.name for module in house_modules()}
    assert names <= known
    for name in names:
        if name.endswith(("process", "process.main")):
            (module,) = [m for m in house_modules() if m.name == name]
            assert 'if __name__ == "__main__":' in module.source


def test_nothing_imports_tests() -> None:
    wrong = [
        f"{module.name}:{item.line}"
        for module in house_modules()
        for item in module.imports
        if item.target.split(".")[0] == "tests" or item.target.startswith("triolet.tests")
    ]
    assert not wrong


def test_the_list_of_packages_is_whole() -> None:
    listed = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    )
    shipped = {m.name for m in house_modules() if m.is_package and m.room != "tools"}
    of_a_checkout = {name for name in shipped if name.startswith(OF_A_CHECKOUT)}
    assert listed == shipped - of_a_checkout
    reached = {
        item.target
        for module in house_modules()
        if not module.name.startswith(("triolet.fuzz.__main__", *OF_A_CHECKOUT))
        for item in module.imports
    }
    assert {name for name in reached if name.startswith(OF_A_CHECKOUT)} == set()


def _names(module: Module) -> set[str]:
    """Identifiers, by which code names things; `/proc` if a path begins so."""
    found: set[str] = set()
    for node in module.nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found.add(name)
            case ast.keyword(arg=str(name)) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.alias(name=name):
                found.update(name.split("."))
            case ast.Constant(value=str(text)) if text.startswith("/proc"):
                found.add("/proc")
    return found


def test_processes_memory_and_descriptors_are_named_where_they_are_kept_alone() -> None:
    naming = {
        module.name.removeprefix("triolet.")
        for module in house_modules()
        if module.room in ("transports", "engine", "runtime", "api")
        if any(name == "/proc" or OF_THE_KERNEL.search(name) for name in _names(module))
    }
    allowed = {
        place: {name for name in naming if f"{name}.".startswith(f"{place}.")}
        for place in KNOW_THE_KERNEL
    }
    assert naming - set().union(*allowed.values()) == set()
    assert [place for place, names in allowed.items() if not names] == []
