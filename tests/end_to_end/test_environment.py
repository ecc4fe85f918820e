"""Environment of a server's processes: which have its secrets, and how long their threads spin."""

import pathlib
import re
import sys

import pytest
import trio

from triolet.engine.kernels.library import SPIN_COUNT, SPIN_VARIABLE

from ..engine.kernels.small_models import needs_kernels
from .server import DEADLINE_S, Server, marked_processes, wait_until

pytestmark = pytest.mark.slow

SERVE = [sys.executable, "-P", "-m", "triolet", "serve", "--port", "0", "--executor"]
# Of every process.
NEEDED = {"PATH", "HOME", "TRIOLET_TEST_MARK", "OMP_WAIT_POLICY", "LD_BIND_NOW"}
SECRET = "do-not-tell"
ROOT, FRONTENDS, DOWNLOAD, NOBODY = "root", "frontend", "download", ""
# As titles say it; spares and fork servers have no role there.
ROLES = (FRONTENDS, "engine", "worker")
SECRETS = {
    "TRIOLET_API_KEY": ROOT,
    "TRIOLET_ADMIN_KEY": ROOT,
    "OTEL_EXPORTER_OTLP_HEADERS": FRONTENDS,
    "HF_TOKEN": DOWNLOAD,
    "AWS_SECRET_ACCESS_KEY": NOBODY,
    "OPENAI_API_KEY": NOBODY,
}
# Root, frontend, its spare and fork server; engine and its spare, each with a worker, their fork
# server.
PROCESSES_MIN = 9
# A library of threads prints what it has read when it is loaded, in the process that loads it.
SPIN_LINE = re.compile(rf"{SPIN_VARIABLE} = '(\d+)'")
# Worker and spare worker, at least: those that are forked have what their fork server has loaded.
LOADED_MIN = 2


def environment(pid: int) -> dict[str, str]:
    data = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(line.partition("=")[::2] for line in data.split("\0") if line)


def core_limit(pid: int) -> str:
    limits = pathlib.Path(f"/proc/{pid}/limits").read_text().splitlines()
    (core,) = [line.split() for line in limits if line.startswith("Max core")]
    return core[4]


def check_environment(found: dict[str, str], command: str, *, is_root: bool) -> None:
    assert found.keys() >= NEEDED, command
    for name, owner in SECRETS.items():
        if is_root or owner != FRONTENDS:
            assert (name in found) == is_root, (name, command)
        elif any(role in command for role in ROLES):
            assert (name in found) == (FRONTENDS in command), (name, command)


@pytest.mark.parametrize("executor", [pytest.param("native", marks=needs_kernels), "torch"])
async def test_secrets_are_where_they_are_needed_and_no_worker_spins_for_long(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("LD_BIND_NOW", "")  # which a loader takes for nothing
    monkeypatch.delenv(SPIN_VARIABLE, raising=False)  # set for the tests' own threads
    monkeypatch.setenv("OMP_DISPLAY_ENV", "verbose")
    server = Server([*SERVE, executor], tmp_path)

    def are_there() -> bool:
        is_loaded = len(SPIN_LINE.findall(server.log())) >= LOADED_MIN
        return is_loaded and len(marked_processes(server.mark)) >= PROCESSES_MIN

    with trio.fail_after(2 * DEADLINE_S):
        server.spawn()
        try:
            await server.wait_ready()
            await wait_until(are_there, "spares are there, and kernels are loaded")
            for phase in ("weights loaded", "KV memory taken", "files hashed"):
                assert server.log().count(f"engine 0: {phase} in ") == 1
            assert set(SPIN_LINE.findall(server.log())) == {SPIN_COUNT}, server.log()
            for pid, command in marked_processes(server.mark).items():
                assert core_limit(pid) == "0", command
                check_environment(environment(pid), command, is_root=pid == server.popen.pid)
        finally:
            with trio.CancelScope(shield=True):
                await server.stop()
