"""A folder of journals is one server's at a time, and says in a sentence why it cannot be used."""

import fcntl
import itertools
import os
import pathlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
import trio
from trio.testing import MockClock

from triolet.engine.errors import BootRefused
from triolet.runtime.continuity.journal_folder import (
    FACTS_FILE,
    LOCK_FILE,
    LOCK_WAIT_S,
    NUMBERS_AHEAD,
    JournalFolder,
    open_journal_folder,
)
from triolet.runtime.journal.disk import read_disk_header
from triolet.runtime.journal.disk_file import JournalDiskFile


def opening(
    path: pathlib.Path, *, model: str = "m", frontends: int = 2
) -> AbstractAsyncContextManager[JournalFolder]:
    return open_journal_folder(path / "journal", model=model, frontends=frontends)


async def refusal(path: pathlib.Path, **values: object) -> str:
    with pytest.raises(BootRefused) as caught:
        async with opening(path, **values):  # type: ignore[arg-type]
            raise AssertionError("not reached")
    return str(caught.value).replace(str(path), "P")


async def test_a_folder_is_made_with_a_journal_for_each_frontend(tmp_path: pathlib.Path) -> None:
    async with opening(tmp_path) as folder:
        assert not folder.is_used
        names = sorted(path.name for path in folder.path.iterdir())
        assert names == ["frontend-0", "frontend-1", LOCK_FILE, FACTS_FILE]
        fd = folder.open_journal(1)
        assert read_disk_header(JournalDiskFile(fd))[0].home == 1
        assert not os.get_inheritable(fd)
        os.close(fd)
    async with opening(tmp_path) as folder:
        assert folder.is_used


async def test_numbers_grow_through_all_runs(tmp_path: pathlib.Path) -> None:
    given: list[int] = []
    for count in (3, NUMBERS_AHEAD + 3, 1):
        async with opening(tmp_path) as folder:
            given += itertools.islice(folder.numbers(), count)
    assert given == sorted(set(given))
    assert given[:4] == [1, 2, 3, 1 + NUMBERS_AHEAD]


async def test_numbers_are_given_where_they_cannot_be_noted(tmp_path: pathlib.Path) -> None:
    async with opening(tmp_path) as folder:
        (folder.path / "server.new").mkdir()
        numbers = list(itertools.islice(folder.numbers(), NUMBERS_AHEAD + 2))
        assert numbers == list(range(1, NUMBERS_AHEAD + 3))


async def test_what_is_no_journal_is_put_aside(tmp_path: pathlib.Path) -> None:
    async with opening(tmp_path) as folder:
        pass
    (folder.path / "frontend-1").write_bytes(b"triolet\x1a\x02" + bytes(5000))
    async with opening(tmp_path) as folder:
        fd = folder.open_journal(1)
        assert read_disk_header(JournalDiskFile(fd))[0].home == 1
        os.close(fd)
        assert (folder.path / "frontend-1.unreadable").stat().st_size == 5009


async def test_of_a_rank_that_was_given_up_nothing_is_kept(tmp_path: pathlib.Path) -> None:
    async with opening(tmp_path) as folder:
        os.truncate(folder.path / "frontend-0", 2**21)
        folder.remove_journal(0)
        folder.remove_journal(0)
        fd = folder.open_journal(0)
        assert os.fstat(fd).st_size == 2**20
        os.close(fd)


async def test_it_waits_for_what_still_writes(
    tmp_path: pathlib.Path, autojump_clock: MockClock
) -> None:
    async with opening(tmp_path) as folder:
        duplicate = os.dup(folder.lock_fd)  # as a frontend has it
    async with trio.open_nursery() as nursery:

        async def let_go() -> None:
            await trio.sleep(LOCK_WAIT_S / 2)
            os.close(duplicate)

        nursery.start_soon(let_go)
        async with opening(tmp_path):
            assert trio.current_time() >= LOCK_WAIT_S / 2


async def test_that_of_another_server_is_refused(
    tmp_path: pathlib.Path, autojump_clock: MockClock
) -> None:
    async with opening(tmp_path):
        began = trio.current_time()
        text = await refusal(tmp_path)
        assert trio.current_time() - began == pytest.approx(LOCK_WAIT_S)
    wanted = "is in use by another server; each needs a folder of its own"
    assert text == f"--journal: P/journal {wanted}"
    async with opening(tmp_path):
        pass


def make_file(path: pathlib.Path) -> None:
    path.write_text("")


def make_link(path: pathlib.Path) -> None:
    path.mkdir()
    (path / LOCK_FILE).symlink_to("elsewhere")


def make_folder_of_journal(path: pathlib.Path) -> None:
    (path / "frontend-0").mkdir(parents=True)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (make_file, "cannot be used: File exists"),
        (make_link, "cannot be used: Too many levels of symbolic links"),
        (make_folder_of_journal, "cannot be written: Is a directory"),
    ],
)
async def test_what_cannot_be_used_is_refused(
    tmp_path: pathlib.Path, make: Callable[[pathlib.Path], None], text: str
) -> None:
    make(tmp_path / "journal")
    assert await refusal(tmp_path) == f"--journal: P/journal {text}"


async def test_where_no_file_can_be_made_it_is_refused() -> None:
    assert await refusal(pathlib.Path("/proc")) == (
        "--journal: /proc/journal cannot be used: No such file or directory"
    ).replace("/proc", "P")


async def test_a_journal_beyond_the_frontends_is_not_left_behind(tmp_path: pathlib.Path) -> None:
    """As servers had that gave a frontend up, and revived it with a fresh home."""
    async with opening(tmp_path) as folder:
        os.close(folder.open_journal(2))
    assert "start it with --frontends 3" in await refusal(tmp_path)
    async with opening(tmp_path, frontends=3) as folder:
        assert folder.facts.frontends == 3
    assert "start it with --frontends 3" in await refusal(tmp_path)


async def test_journals_of_another_server_are_refused(tmp_path: pathlib.Path) -> None:
    async with opening(tmp_path):
        pass
    assert await refusal(tmp_path, frontends=3) == (
        "--journal: P/journal has the journals of 2 frontends, and this server has 3;"
        " start it with --frontends 2, or drain that one, and choose another folder"
    )
    assert await refusal(tmp_path, model="n") == (
        "--journal: P/journal has the journals of the model 'm', and this server's is 'n';"
        " serve that one, or choose another folder to begin anew"
    )


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"model":"m"}', '{"model":"m","frontends":"2"}', '{"model":7,"frontends":2}'],
)
async def test_facts_that_cannot_be_read_are_refused(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / FACTS_FILE).write_text(text)
    said = await refusal(tmp_path)
    assert said.startswith(f"--journal: P/journal has a {FACTS_FILE} that cannot be read (")


@pytest.mark.parametrize("number", [0, -1, 2**31, 2**63 - 1])
async def test_numbers_that_have_run_out_are_refused(tmp_path: pathlib.Path, number: int) -> None:
    (tmp_path / "journal").mkdir()
    facts = f'{{"model":"m","frontends":2,"numbers":{number}}}'
    (tmp_path / "journal" / FACTS_FILE).write_text(facts)
    assert "has no numbers left" in await refusal(tmp_path)


async def test_its_lock_is_one_that_others_see(tmp_path: pathlib.Path) -> None:
    async with opening(tmp_path) as folder:
        fd = os.open(folder.path / LOCK_FILE, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)
