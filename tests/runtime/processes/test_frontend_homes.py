"""Homes go from frontend to frontend, and what a death on the way says of them."""

import os
import pathlib
import socket

import pytest
import trio
import trio.testing

from triolet.engine.messages import Drain
from triolet.nurseries.processes.process import open_process
from triolet.runtime.journal.disk import DiskJournal, read_disk_header
from triolet.runtime.journal.disk_file import JournalDiskFile, boot_id
from triolet.runtime.journal.memory import open_mapped_journal
from triolet.runtime.journal.records import (
    HEADER_BYTES,
    REBUILDING_AT,
    SEGMENT_BYTES,
    JournalHeader,
    rebuilding_word,
)
from triolet.runtime.messages import HostHome
from triolet.runtime.processes.child_process import ChildProcess
from triolet.runtime.processes.frontend_homes import FrontendHomes
from triolet.runtime.processes.homes.home_owners import HomeOwners
from triolet.runtime.processes.homes.journal_folder import open_journal_folder
from triolet.runtime.processes.membership import FrontendDirectory
from triolet.transports.control.channel import ControlChannel

from ...nurseries.child_programs import HASTY, spec_of
from ..acting import fill


@pytest.mark.slow
@pytest.mark.parametrize("is_sent", [True, False])
async def test_no_host_has_died_of_a_home_that_it_was_not_sent(is_sent: bool) -> None:
    homes = FrontendHomes(HomeOwners(2), FrontendDirectory(), lambda _: None)
    homes.hold(0)
    assert homes.handle_given_up(0, [1], [0]) == (0, 1)
    for number in (1, 2):
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        async with open_process(spec_of("deaf"), ladder=HASTY) as process:
            with right, ControlChannel(left, sends=[Drain, HostHome]) as control:
                child = ChildProcess(process, control, lambda *_: None)
                if not is_sent:
                    await fill(child)
                async with trio.open_nursery() as nursery:
                    term = homes.begin(0, number)
                    nursery.start_soon(homes.ask, child, 0, term, 60.0)
                    await trio.testing.wait_all_tasks_blocked()
                    homes.handle_gone(1, is_own_fault=True)
                    nursery.cancel_scope.cancel("it is gone")
    assert homes.owners.host(0) == (None if is_sent else 1)
    homes.close()


def note_rebuilding(fd: int, term: int, *, is_on_disk: bool) -> None:
    """As a frontend does, under this term."""
    word = rebuilding_word(term, "a stream")
    if is_on_disk:
        DiskJournal.read(JournalDiskFile(fd), boot_id())[0].publish(REBUILDING_AT, word)
    else:
        with open_mapped_journal(fd, SEGMENT_BYTES) as memory:
            memory.publish(REBUILDING_AT, word)


def is_rebuilding(fd: int, *, is_on_disk: bool) -> bool:
    """Whether the next life finds that the one before died as it rebuilt a stream."""
    if is_on_disk:
        return bool(read_disk_header(JournalDiskFile(fd))[0].rebuilding)
    return bool(JournalHeader.of(os.pread(fd, HEADER_BYTES, 0)).rebuilding)


@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_who_is_killed_from_outside_has_died_of_no_stream(
    tmp_path: pathlib.Path, is_on_disk: bool
) -> None:
    homes = FrontendHomes(HomeOwners(2), FrontendDirectory(), lambda _: None)
    async with open_journal_folder(tmp_path / "journals", model="m", frontends=2) as folder:
        homes.folder = folder if is_on_disk else None
        homes.hold(0)
        homes.handle_gone(0, is_own_fault=False)  # before it had a process
        term, _ = homes.begin_own(0, 0, 7)
        fd = homes.journal(0)
        assert fd is not None
        for died_of_it, of, is_own_fault in [
            (True, term, True),
            (False, term, False),
            (True, term - 1, False),  # its death is not to forget that of the life before
        ]:
            note_rebuilding(fd, of, is_on_disk=is_on_disk)
            homes.handle_gone(0, is_own_fault=is_own_fault)
            assert is_rebuilding(fd, is_on_disk=is_on_disk) == died_of_it
        homes.close()


async def test_a_home_that_was_not_begun_is_no_affair_of_its_hosts_death() -> None:
    homes = FrontendHomes(HomeOwners(2), FrontendDirectory(), lambda _: None)
    homes.hold(0)
    fd = homes.journal(0)
    assert fd is not None
    assert homes.handle_given_up(0, [1], [0]) == (0, 1)
    note_rebuilding(fd, homes.begin(0, 7), is_on_disk=False)
    for is_begun in (False, True):
        if is_begun:
            homes.owners.handle_begun(0)
        homes.handle_gone(1, is_own_fault=False)
        assert is_rebuilding(fd, is_on_disk=False) != is_begun
    homes.close()
