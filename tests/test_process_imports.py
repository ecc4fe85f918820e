"""What each kind of process loads: its own rooms, its own packages, nothing twice, never torch.

A restart costs what a process imports, so the list is short and a newcomer on it is a decision.
"""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys, importlib
importlib.import_module(sys.argv[1])
house = sorted(name for name in sys.modules if name == "triolet" or name.startswith("triolet."))
files = [getattr(sys.modules[name], "__file__", None) for name in house]
stdlib = set(sys.stdlib_module_names)
packages = sorted({name.split(".")[0] for name in sys.modules} - stdlib - {"triolet", "__main__"})
print(json.dumps([house, files, packages]))
"""
# Packages that trio, pyzmq and attrs bring along; underscored names are compiled helpers.
COMMON = {
    "attr", "attrs", "trio", "outcome", "sniffio", "sortedcontainers", "idna", "cffi", "msgspec",
    "typing_extensions", "cython_runtime",
}  # fmt: skip
PROCESSES = {
    "triolet.runtime.root": (COMMON, {"engine", "runtime", "nurseries", "transports"}),
    "triolet.engine.process": (
        COMMON | {"zmq"},
        {"engine", "nurseries", "transports"},
    ),
    "triolet.engine.worker.process": (COMMON, {"engine", "nurseries", "transports"}),
    "triolet.api.frontend_process": (
        COMMON | {"zmq", "tokenizers", "jinja2", "markupsafe", "h11", "wsproto", "trio_websocket",
                  "prometheus_client", "cattrs"},
        {"api", "engine", "runtime", "nurseries", "transports"},
    ),
}  # fmt: skip
IGNORED = {"distutils-precedence", "sitecustomize", "usercustomize", "exceptiongroup"}


@pytest.mark.slow
@pytest.mark.parametrize("module", PROCESSES)
def test_a_process_loads_its_own_rooms_and_packages_only(module: str) -> None:
    packages_allowed, rooms_allowed = PROCESSES[module]
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM, module], capture_output=True, text=True, timeout=60
    )
    assert completed.returncode == 0, completed.stderr
    house, files, packages = json.loads(completed.stdout)
    seen = {name for name in packages if not name.startswith(("_", "__editable__"))} - IGNORED
    assert seen <= packages_allowed, f"newcomers: {seen - packages_allowed}"
    rooms = {name.split(".")[1] for name in house if name.count(".") >= 1}
    assert rooms <= rooms_allowed
    assert len(set(files)) == len(files), "a module of the house is loaded twice"
    core_is_torch_free = "torch" not in packages
    assert core_is_torch_free
