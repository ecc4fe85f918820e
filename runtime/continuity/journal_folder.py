"""Folder of a server's journals on disk: locked, numbered, and one file for each frontend.

    lock              one open description of it is locked by the root, and passed to each frontend:
                      what may still write keeps the next server out
    server.json       of which model and how many frontends the journals are, and which numbers may
                      have been given to processes
    frontend-N        the journal of rank N; `frontend-N.unreadable` if it could not be read

Numbers of processes (epochs, and terms with them) grow through all runs. So that a run need not
write down each, it notes ahead that it may give some.
"""

import contextlib
import fcntl
import itertools
import logging
import os
import pathlib
import re
from collections.abc import AsyncIterator, Iterator

import attrs
import msgspec
import trio

from ...engine.errors import BootRefused
from ...nurseries.tasks.background import waiting_for
from ..journal.disk_file import prepare_disk_journal
from ..journal.records import JournalUnreadable

logger = logging.getLogger(__name__)
LOCK_FILE, FACTS_FILE = "lock", "server.json"
_FACTS_BYTES_MAX = 4096
_JOURNAL_FILE = re.compile(r"frontend-(0|[1-9][0-9]{0,3})", re.ASCII)
_FILE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
# Processes that a server started may outlive its root by about a second.
LOCK_WAIT_S = 10.0
_LOCK_RETRY_S = 0.05
# A crash wastes the rest of so many; a term has 31 bits.
NUMBERS_AHEAD = 256
_NUMBERS_MAX = 2**31 - NUMBERS_AHEAD


@attrs.frozen(kw_only=True)
class JournalFacts:
    """Owner of the journals, and `numbers`, below which numbers may have been given."""

    model: str
    frontends: int
    numbers: int = 1


@attrs.define(eq=False)
class JournalFolder:
    """A folder that is locked for this server."""

    path: pathlib.Path
    # To pass on: the lock is held until each duplicate is closed.
    lock_fd: int
    facts: JournalFacts
    # Whether a server before this one left journals.
    is_used: bool

    def numbers(self) -> Iterator[int]:
        """Numbers of processes, each once in all runs.

        Where the disk takes no note of more they are given all the same: after that, a later run
        may find that a journal is not older than itself, and leaves it alone.
        """
        for number in itertools.count(self.facts.numbers):
            if number == self.facts.numbers:
                self.facts = attrs.evolve(self.facts, numbers=number + NUMBERS_AHEAD)
                try:
                    self.write_facts()
                except OSError as error:
                    logger.error("%s cannot be written: %s", self.path / FACTS_FILE, error)
            yield number

    def open_journal(self, rank: int) -> int:
        """The descriptor of a rank's journal, the caller's to close. Raises `OSError`."""
        path = self._path(rank)
        while True:
            fd = os.open(path, _FILE_FLAGS, 0o600)
            try:
                prepare_disk_journal(fd, rank)
                self._sync()
                return fd
            except JournalUnreadable as unreadable:
                os.close(fd)
                aside = path.with_suffix(".unreadable")
                logger.error("%s is put aside as %s: %s", path, aside.name, unreadable)
                path.replace(aside)
            except BaseException:
                os.close(fd)
                raise

    def remove_journal(self, rank: int) -> None:
        """Remove a journal: the next process of the rank begins with an empty one."""
        with contextlib.suppress(OSError):
            self._path(rank).unlink()

    def write_facts(self) -> None:
        """Whole, or not at all. Raises `OSError`."""
        path, data = self.path / FACTS_FILE, msgspec.json.encode(self.facts)
        new = path.with_suffix(".new")
        fd = os.open(new, _FILE_FLAGS | os.O_TRUNC, 0o600)
        try:
            os.write(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        new.replace(path)
        self._sync()

    def _sync(self) -> None:
        """Names, too, are on the disk then."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _path(self, rank: int) -> pathlib.Path:
        return self.path / f"frontend-{rank}"


@contextlib.asynccontextmanager
async def open_journal_folder(
    path: pathlib.Path, *, model: str, frontends: int
) -> AsyncIterator[JournalFolder]:
    """Make the folder if there is none, and lock it for this server.

    Raises `BootRefused` with a sentence: it is no folder, cannot be written, is another server's,
    or of another model or number of frontends.
    """
    lock_fd = _open_lock(path)
    try:
        await _lock(path, lock_fd)
        yield _open_locked(path, lock_fd, JournalFacts(model=model, frontends=frontends))
    finally:
        os.close(lock_fd)


def _open_lock(path: pathlib.Path) -> int:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path / LOCK_FILE, _FILE_FLAGS, 0o600)
    except OSError as error:
        raise _refused(path, f"cannot be used: {error.strerror or error}") from error


async def _lock(path: pathlib.Path, fd: int) -> None:
    """Wait while what a server before has left may still write."""
    with trio.move_on_after(LOCK_WAIT_S), waiting_for("the journals of a server before"):
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                await trio.sleep(_LOCK_RETRY_S)
            except OSError as error:
                raise _refused(path, f"cannot be locked: {error.strerror or error}") from error
    raise _refused(path, "is in use by another server; each needs a folder of its own")


def _open_locked(path: pathlib.Path, lock_fd: int, wanted: JournalFacts) -> JournalFolder:
    before = _read_facts(path)
    anew = "or choose another folder to begin anew"
    if before is None:
        folder = JournalFolder(path, lock_fd, wanted, is_used=False)
    elif before.model != wanted.model:
        text = f"has the journals of the model {before.model!r}, and this server's is"
        raise _refused(path, f"{text} {wanted.model!r}; serve that one, {anew}")
    elif (held := _frontends_in(path, before)) != wanted.frontends:
        text = f"has the journals of {held} frontends, and this server has"
        cure = f"start it with --frontends {held}, or drain that one, and choose another folder"
        raise _refused(path, f"{text} {wanted.frontends}; {cure}")
    elif not 1 <= before.numbers < _NUMBERS_MAX:
        raise _refused(path, "has no numbers left for processes; choose another folder")
    else:
        facts = attrs.evolve(before, frontends=held)
        folder = JournalFolder(path, lock_fd, facts, is_used=True)
    try:
        folder.write_facts()
        for rank in range(wanted.frontends):
            os.close(folder.open_journal(rank))
    except OSError as error:
        raise _refused(path, f"cannot be written: {error.strerror or error}") from error
    return folder


def _frontends_in(path: pathlib.Path, facts: JournalFacts) -> int:
    """How many frontends have left journals, which all must go on."""
    found = filter(None, map(_JOURNAL_FILE.fullmatch, os.listdir(path)))
    return max([facts.frontends, *(1 + int(match[1]) for match in found)])


def _read_facts(path: pathlib.Path) -> JournalFacts | None:
    """Read the facts; None where no server has been before."""
    try:
        with (path / FACTS_FILE).open("rb") as file:
            return msgspec.json.decode(file.read(_FACTS_BYTES_MAX), type=JournalFacts)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        what = f"has a {FACTS_FILE} that cannot be read ({error})"
        raise _refused(path, f"{what}; choose another folder to begin anew") from error


def _refused(path: pathlib.Path, reason: str) -> BootRefused:
    return BootRefused("the journals", f"--journal: {path} {reason}")
