"""Run folder, through which commands reach a running server: its control socket and `run.json`.

`$XDG_RUNTIME_DIR/triolet/<run id>` (a per-user temporary folder otherwise), readable by its owner
alone. A folder whose owner is gone (pid and start time, since pids are used again) is removed at
the next start.
"""

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import attrs
import msgspec

from ..errors import RunNotFound

RUN_FILE = "run.json"
# Begins the name of a folder that is not complete.
_MAKING = ".making-"
SOCKET_FILE = "control.sock"


@attrs.frozen(kw_only=True)
class RunFacts:
    """Facts of a run, in `run.json`. `start_ticks` is the owner's start time in clock ticks."""

    run_id: str
    pid: int
    start_ticks: int
    url: str
    model: str
    version: str


@attrs.frozen
class RunFolder:
    """Folder of a run, as found or made."""

    path: pathlib.Path
    facts: RunFacts

    @property
    def socket_path(self) -> pathlib.Path:
        """Path of the control socket."""
        return self.path / SOCKET_FILE

    @contextlib.contextmanager
    def socket_address(self) -> Iterator[str]:
        """The same place, short: an address has 107 bytes, a path of people's may have more.

        Valid inside the block. Raises `OSError` if the folder is gone.
        """
        folder = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{folder}/{SOCKET_FILE}"
        finally:
            os.close(folder)


def base_folder() -> pathlib.Path:
    """The folder of all runs of this user."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return pathlib.Path(runtime) / "triolet"
    return pathlib.Path(tempfile.gettempdir()) / f"triolet-{os.getuid()}"


@contextlib.contextmanager
def make_run_folder(run_id: str, *, url: str, model: str, version: str) -> Iterator[RunFolder]:
    """Make this run's folder, remove those of dead owners, and remove ours on the way out.

    Raises `PermissionError` if the folder of all runs belongs to another user, is a link, or is
    one that others may write to.
    """
    base = base_folder()
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    if base.lstat().st_uid != os.getuid() or base.is_symlink():
        raise PermissionError(f"{base} is not our own folder; set XDG_RUNTIME_DIR")
    if base.stat().st_mode & 0o022:
        raise PermissionError(f"{base} can be written to by others: chmod 700 it")
    remove_stale(base)
    facts = RunFacts(
        run_id=run_id,
        pid=os.getpid(),
        start_ticks=_start_ticks(os.getpid()) or 0,
        url=url,
        model=model,
        version=version,
    )
    # Made under another name and then renamed: a run that starts beside us must not see a folder
    # that has no owner yet.
    making, path = base / f"{_MAKING}{run_id}", base / run_id
    making.mkdir(mode=0o700)
    try:
        (making / RUN_FILE).write_bytes(msgspec.json.encode(facts))
        making.rename(path)
        yield RunFolder(path, facts)
    finally:
        shutil.rmtree(making, ignore_errors=True)
        shutil.rmtree(path, ignore_errors=True)


def remove_stale(base: pathlib.Path) -> None:
    """Remove the folders whose owner is gone, and nothing else."""
    for path in sorted(base.iterdir()):
        if path.name.startswith(_MAKING):
            continue  # another run is starting; one that died in that moment leaves 300 bytes
        folder = _read(path)
        if _is_run(path) and (folder is None or not _alive(folder.facts)):
            shutil.rmtree(path, ignore_errors=True)


def find_run(named: str | None = None) -> RunFolder:
    """The running server with this port, address or beginning of an id, or the only one there is.

    Raises `RunNotFound`, saying which runs there are.
    """
    live = live_runs()
    matching = [folder for folder in live if named and named in _addresses(folder.facts)]
    matching = matching or [f for f in live if f.facts.run_id.startswith(named or "")]
    if len(matching) == 1:
        return matching[0]
    raise RunNotFound(named or "", tuple(_line_of(folder.facts) for folder in live))


def live_runs() -> list[RunFolder]:
    """Every running server of this user."""
    base = base_folder()
    paths = sorted(base.iterdir()) if base.is_dir() else []
    return [f for path in paths if (f := _read(path)) is not None and _alive(f.facts)]


def _addresses(facts: RunFacts) -> tuple[str, ...]:
    """The port, host and port, and URL of a run."""
    host_and_port = facts.url.partition("://")[2]
    return host_and_port.rpartition(":")[2], host_and_port, facts.url, f"{facts.url}/"


def _line_of(facts: RunFacts) -> str:
    now_s = float(pathlib.Path("/proc/uptime").read_text().split()[0])
    up_s = int(now_s - facts.start_ticks / os.sysconf("SC_CLK_TCK"))
    minutes, hours = up_s // 60, up_s // 3600
    up = f"{hours} h" if hours else f"{minutes} min" if minutes else f"{up_s} s"
    return f"{facts.run_id}  {facts.url}  {facts.model}, up for {up}"


def _is_run(path: pathlib.Path) -> bool:
    """Whether there is nothing in it but what we put there, or a removal left half of it."""
    try:
        return not path.is_symlink() and set(os.listdir(path)) <= {RUN_FILE, SOCKET_FILE}
    except OSError:
        return False  # a file, or gone meanwhile


def _read(path: pathlib.Path) -> RunFolder | None:
    try:
        facts = msgspec.json.decode((path / RUN_FILE).read_bytes(), type=RunFacts)
        return RunFolder(path, facts)
    except (OSError, msgspec.MsgspecError):
        return None


def _alive(facts: RunFacts) -> bool:
    return _start_ticks(facts.pid) == facts.start_ticks


def _start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot (`/proc/<pid>/stat`, field 22)."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])
