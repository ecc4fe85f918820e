"""What each kind of process loads: its own rooms, its own packages, nothing twice, never torch.

A restart costs what a process imports, so the list is short and a newcomer on it is a decision. The
same holds for a command that looks at a running server: someone waits for it at a prompt.
"""

import json
import pathlib
import subprocess
import sys

import pytest

IMPORT = """
import importlib
for module in sys.argv[1:]:
    importlib.import_module(module)
"""
RUN = """
from contextlib import redirect_stdout, suppress
from triolet.command_line import run_words
with suppress(SystemExit), redirect_stdout(sys.stderr):
    run_words(sys.argv[1:])
"""
WHAT_IS_LOADED = """
house = sorted(name for name in sys.modules if name == "triolet" or name.startswith("triolet."))
files = [getattr(sys.modules[name], "__file__", None) for name in house]
stdlib = set(sys.stdlib_module_names)
packages = sorted({name.split(".")[0] for name in sys.modules} - stdlib - {"triolet", "__main__"})
print(json.dumps([house, files, packages]))
"""
# Packages that trio, pyzmq and attrs bring along; underscored names are compiled helpers.
COMMON = {
    "attr", "attrs", "trio", "outcome", "sniffio", "sortedcontainers", "idna", "cffi", "msgspec",
    "typing_extensions", "cython_runtime", "setproctitle",
}  # fmt: skip
ROOMS = {"engine", "runtime", "nurseries", "transports"}
# Of the edge, what a command needs that serves; not what a frontend serves with.
EDGE_OF_ROOT = {"commands", "errors", "http", "openai", "settings"}
PROCESSES = {
    # Of a journal the root writes the header, with its checksum.
    ("triolet.runtime.fleet.root",): (COMMON | {"crc32c"}, ROOMS),
    # The live root of `triolet serve`, all that its command imports by and by.
    (
        "triolet.api.commands.exits",
        "triolet.api.commands.plan",
        "triolet.api.commands.serve",
    ): (COMMON | {"cattrs", "crc32c"}, ROOMS | {"api"}),
    ("triolet.engine.process.main",): (
        COMMON | {"zmq", "llguidance"}, {"engine", "nurseries", "transports"},
    ),
    ("triolet.runtime.forms.form_process",): (
        COMMON | {"llguidance"}, {"engine", "runtime", "nurseries", "transports"},
    ),
    # Of rich the words for sizes, in lines of events.
    ("triolet.runtime.launchers.local_process",): (COMMON | {"zmq", "rich"}, ROOMS),
    # Ray itself comes when the process runs, and its own workers import the actor's module alone.
    ("triolet.runtime.launchers.ray_process",): (COMMON, ROOMS),
    ("triolet.runtime.launchers.ray_actor",): (set(), {"runtime"}),
    ("triolet.engine.worker.process",): (COMMON, {"engine", "nurseries", "transports"}),
    ("triolet.engine.worker.native_process",): (
        COMMON | {"numpy"}, {"engine", "nurseries", "transports"},
    ),
    ("triolet.api.frontend_process",): (
        COMMON | {"zmq", "tokenizers", "llguidance", "jinja2", "markupsafe", "httptools", "h11",
                  "wsproto", "trio_websocket", "prometheus_client", "crc32c"},
        ROOMS | {"api"},
    ),
}  # fmt: skip
# Modules of the house that a command loads which needs no settings.
START = {
    "api.commands.peer_options", "api.commands.sources", "command_line", "engine.errors",
    "nurseries.processes.last_words", "nurseries.processes.spawned",
}  # fmt: skip
CLIENT = START | {
    "api.commands.exits", "nurseries.plain_text", "nurseries.tasks.background",
    "nurseries.tasks.service", "runtime.control.calls", "runtime.control.client",
    "runtime.control.run_folder", "runtime.errors", "runtime.fleet.platform",
}  # fmt: skip
ASKING = CLIENT | {"api.commands.running", "nurseries.tasks.task_tree"}
COMMANDS = {
    "--version": START,
    "--help": START,
    "tree --help": START,
    "tree": ASKING,
    "restart": ASKING,
    "top": CLIENT | {"api.commands.overview", "api.commands.top"},
}
IGNORED = {"distutils-precedence", "sitecustomize", "usercustomize", "exceptiongroup"}


def loaded_by(words: tuple[str, ...], how: str = IMPORT) -> tuple[list[str], list[str], list[str]]:
    """House modules, their files, and packages from elsewhere, in a fresh process."""
    program = f"import json, sys\n{how}{WHAT_IS_LOADED}"
    completed = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=240
    )
    assert completed.returncode == 0, completed.stderr
    house, files, packages = json.loads(completed.stdout)
    return house, files, packages


@pytest.mark.slow
@pytest.mark.parametrize("modules", PROCESSES, ids=lambda modules: modules[-1])
def test_a_process_loads_its_own_rooms_and_packages_only(modules: tuple[str, ...]) -> None:
    packages_allowed, rooms_allowed = PROCESSES[modules]
    house, files, packages = loaded_by(modules)
    seen = {name for name in packages if not name.startswith(("_", "__editable__"))} - IGNORED
    assert seen <= packages_allowed, f"newcomers: {seen - packages_allowed}"
    rooms = {name.split(".")[1] for name in house if name.count(".") >= 1}
    assert rooms <= rooms_allowed
    edge = {name.split(".")[2] for name in house if name.startswith("triolet.api.")}
    assert edge <= EDGE_OF_ROOT or modules == ("triolet.api.frontend_process",)
    assert len(set(files)) == len(files), "a module of the house is loaded twice"


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_loads_no_more_than_it_asks_with(
    command: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # no server runs there
    house, files, packages = loaded_by(tuple(command.split()), RUN)
    is_package = {name for name, file in zip(house, files, strict=True) if "__init__" in file}
    seen = {name.removeprefix("triolet.") for name in set(house) - is_package}
    assert seen == COMMANDS[command]
    assert "trio" not in packages or command in ("tree", "restart", "top")
