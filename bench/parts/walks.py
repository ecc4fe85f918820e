"""Files that one request passes through: a prompt's way down to the kernels, a token's way up.

    python -m triolet.bench walks

Starts `triolet serve` with a hook of `sys.setprofile` in every process and thread, asks twice, and
counts the distinct product files that the second request enters: before its first token is sampled
(down), and from then until the client has that token (up). Tasks of the background run meanwhile,
so the fewest of some requests count.
"""

import contextlib
import http.client
import json
import pathlib
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence

from ..load.client import Target
from .serving import open_server
from .words import argument_parser

ROUNDS = 9
# Time for what an answered request leaves to do.
SETTLED_S = 0.3
ROOMS = ("api", "runtime", "engine", "transports", "nurseries")
# The worker's call into the kernels: the token is sampled in it.
SAMPLED_IN = "engine/kernels/binding.py"
# The first token is not the last one, so that the way up is not that of an end.
BODY = {"input": "A fox", "max_output_tokens": 4, "temperature": 0, "stream": True}
DELTA = b"event: response.output_text.delta"
HOOK = """
import os, sys, threading, time
folder, root = os.environ["WALKS_LOG"], os.environ["WALKS_ROOT"] + "/"
descriptor = os.open(f"{folder}/{os.getpid()}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
last = None
def note(frame, event, argument):
    global last
    name = frame.f_code.co_filename
    if event == "call" and name is not last and name.startswith(root):
        last = name
        os.write(descriptor, f"{time.monotonic_ns()} {name[len(root):]}\\n".encode())
threading.setprofile(note)
sys.setprofile(note)
"""
Step = tuple[int, str]


@contextlib.contextmanager
def hooked_server(folder: pathlib.Path) -> Iterator[Target]:
    """A server whose processes note their calls in files of `folder`."""
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(HOOK)
    variables = {
        "PYTHONPATH": str(folder / "hook"),
        "TRIOLET_PASS_ENV": "WALKS_LOG,WALKS_ROOT",  # to every process of the tree
        "WALKS_LOG": str(folder),
        "WALKS_ROOT": str(pathlib.Path(__file__).resolve().parents[2]),
    }
    with open_server(executor="", variables=variables) as server:
        yield server.target


def ask(target: Target) -> tuple[int, int]:
    """Ask for a streamed response: when it began and when its first token came (monotonic, ns)."""
    signal.sigtimedwait([], SETTLED_S)
    began = time.monotonic_ns()
    connection = http.client.HTTPConnection(target.host, target.port, timeout=30)
    head = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/responses", json.dumps(BODY), head)
    answer = connection.getresponse()
    assert answer.status == http.HTTPStatus.OK
    while not answer.readline().startswith(DELTA):
        pass
    came = time.monotonic_ns()
    answer.read()
    connection.close()
    return began, came


def steps_between(notes: pathlib.Path, began: int, ended: int) -> list[Step]:
    """Steps that all processes noted meanwhile, in order of time."""
    found = []
    for path in filter(pathlib.Path.is_file, notes.iterdir()):
        for line in path.read_text().splitlines():
            at, _, name = line.partition(" ")
            if began <= int(at) <= ended and name.startswith(ROOMS):
                found.append((int(at), name))
    return sorted(found)


def split(steps: Sequence[Step]) -> tuple[list[str], list[str]]:
    """The files of the way down and of the way up, each once, in order of their first call."""
    sampled = min(at for at, name in steps if name == SAMPLED_IN)
    down = dict.fromkeys(name for at, name in steps if at <= sampled)
    up = dict.fromkeys(name for at, name in steps if at > sampled)
    return list(down), list(up)


def main() -> None:
    """Print both ways."""
    argument_parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        notes = pathlib.Path(name)
        with hooked_server(notes) as target:
            ask(target)
            times = [ask(target) for _ in range(ROUNDS)]
        walks = [split(steps_between(notes, *each)) for each in times]
    for name, ways in zip(("down", "up"), zip(*walks, strict=True), strict=True):
        fewest = min(ways, key=len)
        print(f"{name}: {len(fewest)} files")
        for path in fewest:
            print(f"  {path}")


if __name__ == "__main__":
    main()
