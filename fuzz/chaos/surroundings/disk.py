"""Faults of the disk that journals are on: one that is full, and one that loses its last sectors.

A limit of the size of files stands for the full disk: the next record of a frontend's journal
fails, and nothing else of it. Sectors are lost, or flipped, while the whole server is dead, as they
are when a machine loses its power before they are synced.
"""

import contextlib
import pathlib
import resource
from collections.abc import Iterator
from random import Random

import trio

from ....runtime.journal.disk import SECTOR_BYTES, DiskJournal, read_disk_header
from ....runtime.journal.disk_file import JournalDiskFile, boot_id
from ...observers import wait_until
from .. import faults
from ..checkers import judge_epochs, judge_full_disk, judge_torn
from ..clients import Lost, ask
from ..fault_plan import Fault
from ..fault_run import RECOVERY_S, FaultRunner
from ..load import FEW_GUESTS
from ..own_faults import run_guest, settled
from ..report.report import FaultOutcome
from ..served_run import JOURNAL, epochs_of
from .limits import limited

# Of /health, which any frontend may answer: so many in a row, for all to have done.
ASKED = 10
# Most sectors that are torn at the end of each journal: what some tens of messages of engines take.
SECTORS_MAX = 3
# A stream that began so shortly before may have its beginning in them.
FORGETS_S = 2.0


async def run_full_disk(
    runner: FaultRunner, fault: Fault, outcome: FaultOutcome, nursery: trio.Nursery
) -> None:
    """Guests come while a journal cannot grow: nothing of theirs ends. Then the frontend dies, and
    its next life has a journal. Raises `Void`, `NotInTime`."""
    served, patience = runner.served, runner.patience
    found = await runner.wait_there(fault)
    before, pid = epochs_of(found), found[fault.place].pid
    log_began = len(served.log())
    await nursery.start(runner.run_probe, fault)
    outcome.begin(trio.current_time())
    said: list[str] = []

    async def is_degraded() -> bool:
        said[:] = await _degraded(runner)
        return bool(said)

    async def is_well() -> bool:
        return not any([await _degraded(runner) for _ in range(ASKED)])

    with full_disk(pid, served.folder / JOURNAL / f"frontend-{fault.rank}") as outcome.proof:
        async with trio.open_nursery() as guests:
            for number in range(FEW_GUESTS):
                guests.start_soon(run_guest, runner, fault, number)
            await wait_until(is_degraded, "/health tells", seconds=RECOVERY_S * patience)
        await trio.sleep(fault.seconds)
    outcome.violations += judge_full_disk(said, fault.rank, served.log()[log_began:])
    died_s = trio.current_time()
    try:
        outcome.proof += f", then {await faults.kill(pid)}"
        after = await settled(runner, fault, pid)
        await wait_until(is_well, "nothing is degraded", seconds=RECOVERY_S * patience)
    finally:
        outcome.until_s = trio.current_time()
        outcome.recovery_s = outcome.until_s - died_s
        runner.remember(fault.kind, died_s, fault.place, is_death=True, is_want=True)
    outcome.violations += judge_epochs(before, after, {fault.place: 1})
    runner.checks.update(["I7", "I10", "I11", "I13"])


async def _degraded(runner: FaultRunner) -> list[str]:
    try:
        _, health = await ask(runner.served.port, "GET", "/health", key=runner.served.key)
    except Lost:
        return []
    return list(health["degraded"])


@contextlib.contextmanager
def full_disk(pid: int, path: pathlib.Path) -> Iterator[str]:
    """No file that this process writes becomes larger than its journal is; the proof.

    Raises `Void`.
    """
    size = path.stat().st_size
    with limited(pid, {resource.RLIMIT_FSIZE: size}):
        yield f"pid {pid} might write no file beyond {size} bytes"


async def run_torn_journals(
    runner: FaultRunner, fault: Fault, outcome: FaultOutcome, nursery: trio.Nursery
) -> None:
    """The root is killed; when all is dead its journals lose their end, and it begins anew with
    them: streams are read on by number. Raises `Void`, `ServerEnded`, `NotInTime`."""
    served = runner.served
    before = epochs_of(await runner.wait_there(fault))
    log_began = len(served.log())
    await nursery.start(runner.run_probe, fault)
    since_s = trio.current_time()
    outcome.begin(since_s)
    try:
        killed = await faults.kill(served.pid)
        served.popen.wait()
        await wait_until(lambda: not any(served.remains()), "all is gone", seconds=RECOVERY_S)
        chance = Random(fault.number)
        paths = sorted((served.folder / JOURNAL).glob("frontend-?"))
        torn = list(filter(None, (tear(path, chance) for path in paths)))
        await served.start(served.port)
        outcome.proof = "; ".join([killed, *torn])
        after = await settled(runner, fault)
    finally:
        outcome.until_s = trio.current_time()
        outcome.recovery_s = outcome.until_s - since_s
        forgets_s = FORGETS_S * runner.patience
        runner.remember(fault.kind, since_s, *before, is_death=True, forgets_s=forgets_s)
    outcome.violations += judge_torn(before, after, len(torn), served.log()[log_began:])
    runner.checks.update(["I1", "I7", "I11", "I13"])
    if not torn:
        raise faults.Void("no journal had a record to lose")


def tear(path: pathlib.Path, chance: Random) -> str:
    """Lose the end of a journal, or flip a bit of its last sectors; "" if it has no records.

    A file that ends with a whole record looks like one that has lost nothing: so it never does.
    """
    with path.open("r+b") as file:
        journal = JournalDiskFile(file.fileno())
        size, begin = journal.size(), read_disk_header(journal)[1].begin
        most = min(size - begin - 1, SECTORS_MAX * SECTOR_BYTES)
        if most < 1:
            return ""
        place = size - chance.randint(1, most)
        if chance.random() < 0.5:
            (byte,) = journal.load(place, 1)
            journal.write(place, bytes([byte ^ (1 << chance.randrange(8))]))
        else:
            journal.truncate(place)
            if not fault_of(journal):
                journal.truncate(place - 1)
        return f"{path.name} of {size} bytes: {fault_of(journal)}"


def fault_of(journal: JournalDiskFile) -> str:
    """What its reader finds wrong."""
    return DiskJournal.read(journal, boot_id())[1].fault
