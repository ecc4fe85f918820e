"""Before a child's own code: death signal, last words, and the garbage collector's settings."""

import errno
import gc
import os
import pathlib
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest
import zmq

from triolet.nurseries.processes.boot import (
    EXIT_FAILED,
    EXIT_ORPHANED,
    EXIT_SHORTAGE,
    OOM_SCORE_MORE,
    code_of,
    maker_of,
)
from triolet.nurseries.processes.heap import (
    MIDDLE_PER_OLD,
    QUIET_YOUNG_OBJECTS,
    YOUNG_OBJECTS,
    YOUNG_PER_MIDDLE,
    pause_collector,
    settle_heap,
    settle_modules,
    settle_quiet_heap,
)
from triolet.nurseries.processes.last_words import LAST_WORDS_BYTES_MAX, LastWords, write_last_words
from triolet.nurseries.processes.process import ProcessSpec

from ...leaks import check_no_leaks
from ..child_programs import CHILDREN, open_child, receive_ready, spec_of

ARM = """
import ctypes, sys
from triolet.nurseries.processes.boot import arm_death_signal
parent_pid = arm_death_signal(int(sys.argv[1]))
armed = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(armed), 0, 0, 0)  # PR_GET_PDEATHSIG
print(parent_pid, armed.value)
"""
# Between us and the one who arms: its child's socketpair was made by its own parent, not by it.
WITH_ANOTHER_PARENT = """
import subprocess, sys
print(subprocess.run([sys.executable, "-c", *sys.argv[1:]], close_fds=False).returncode)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "missing"),
    [
        (spec_of("fails_at_import"), "'no_such_module_anywhere'"),
        (ProcessSpec("ghost", "triolet.no_such"), "triolet.no_such"),
        (ProcessSpec("here", "deaf"), "deaf"),  # the current folder is not searched
    ],
    ids=lambda value: str(value) if isinstance(value, str) else value.module,
)
async def test_a_module_that_cannot_be_imported_is_in_the_last_words(
    spec: ProcessSpec, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CHILDREN)
    async with open_child(spec, until_ready=False) as process:
        seen = await process.wait_exited()
    assert seen.code == 1
    assert f"No module named {missing}" in seen.last_words


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), EXIT_SHORTAGE),
        (OSError(errno.ENOMEM, "no memory"), EXIT_SHORTAGE),
        (OSError(errno.EMFILE, "no descriptor"), EXIT_SHORTAGE),
        (zmq.ZMQError(errno.ENFILE), EXIT_SHORTAGE),
        (RuntimeError("can't start new thread"), EXIT_SHORTAGE),
        (RuntimeError("something else"), EXIT_FAILED),
        (OSError(errno.EBADF, "no such descriptor"), EXIT_FAILED),
        (OSError("without a number"), EXIT_FAILED),
    ],
)
def test_exit_codes_of_errors(error: Exception, code: int) -> None:
    assert code_of(error) == code


@pytest.mark.slow
async def test_an_error_without_memory_for_words_still_ends_the_process_at_once() -> None:
    async with open_child("has_no_memory", until_ready=False) as process:
        seen = await process.wait_exited()
    assert (seen.code, seen.last_words) == (EXIT_SHORTAGE, "")
    assert seen.is_own_fault
    assert seen.was_short


@pytest.mark.slow
async def test_the_module_is_the_main_program_already_armed() -> None:
    """`armed_at_import` looks in its first line what the kernel was asked for."""
    async with open_child("armed_at_import", until_ready=False) as process:
        armed, name, arguments, score = (await receive_ready(process)).split()
    assert (armed, name, arguments) == ("9", "__main__", "4")
    assert int(score) == min(1000, own_score() + OOM_SCORE_MORE)  # it goes before us


def own_score() -> int:
    return int(pathlib.Path("/proc/self/oom_score_adj").read_text())


def output_of(program: str, *arguments: str, fd: int) -> list[int]:
    completed = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        pass_fds=(fd,),
        stdout=subprocess.PIPE,
        check=True,
        timeout=240,
    )
    return [int(word) for word in completed.stdout.split()]


@pytest.mark.slow
def test_the_maker_of_a_socketpair_is_known_at_both_ends() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert maker_of(ours.fileno()) == maker_of(theirs.fileno()) == os.getpid()


@pytest.mark.slow
def test_arming_asks_for_sigkill_and_returns_the_parent() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        assert output_of(ARM, str(fd), fd=fd) == [os.getpid(), signal.SIGKILL]


@pytest.mark.slow
def test_a_parent_that_died_before_the_arming_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        assert output_of(WITH_ANOTHER_PARENT, ARM, str(fd), fd=fd) == [EXIT_ORPHANED]


@pytest.fixture(autouse=True)
def collector_restored() -> Iterator[None]:
    """Begin with nothing frozen, and leave this process as it was."""
    thresholds = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.enable()
    gc.freeze()
    gc.set_threshold(*thresholds)


class Node:
    """Something that may be in a cycle."""

    def __init__(self) -> None:
        self.other: Node | None = None


def make_cycle() -> "weakref.ref[Node]":
    node, other = Node(), Node()
    node.other, other.other = other, node
    return weakref.ref(node)


def test_what_is_there_is_not_looked_at_again() -> None:
    before = make_cycle()
    keeps = [Node()]
    settle_heap()
    assert before() is None, "a cycle without a holder was frozen"
    assert all(item is not keeps[0] for item in gc.get_objects()), "it is still looked at"
    assert gc.get_freeze_count() > 0


def test_cycles_that_come_later_are_collected_without_being_asked() -> None:
    settle_heap()
    cycle = make_cycle()
    for _ in range(2):  # the second time it is not the youngest any more
        kept: list[list[int]] = [[] for _ in range(YOUNG_OBJECTS + 1)]
        del kept
    assert cycle() is None
    assert gc.get_threshold() == (YOUNG_OBJECTS, YOUNG_PER_MIDDLE, MIDDLE_PER_OLD)


def test_in_a_quiet_process_cycles_of_what_is_old_are_collected_soon() -> None:
    settle_quiet_heap()
    cycle = make_cycle()
    node = cycle()
    gc.collect(1)  # as old as can be
    del node
    kept: list[list[int]] = [[] for _ in range(QUIET_YOUNG_OBJECTS)]
    for _ in range(30 * QUIET_YOUNG_OBJECTS):
        make_cycle()
    assert cycle() is None
    assert kept


def test_modules_are_not_looked_at_again_and_nothing_is_collected() -> None:
    pause_collector()
    assert not gc.isenabled()
    cycle = make_cycle()
    keeps = [Node()]
    settle_modules()
    assert cycle() is not None
    assert all(item is not keeps[0] for item in gc.get_objects())
    assert gc.isenabled()
    assert gc.get_threshold() == (YOUNG_OBJECTS, YOUNG_PER_MIDDLE, MIDDLE_PER_OLD)


# Large blocks after a first one was freed, with a small one above each that stays.
BLOCKS = """
import pathlib
from triolet.nurseries.processes import heap
if {is_bound}:
    heap.return_large_blocks()
held = lambda: int(pathlib.Path("/proc/self/statm").read_text().split()[1])
bytearray(5 * 2**20)
before, blocks, above = held(), [], []
for _ in range(8):
    blocks.append(bytearray(4 * 2**20))
    above.append(bytearray(2**16))
del blocks
print(before, held())
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_bound", [True, False])
def test_large_blocks_go_back_to_the_kernel(is_bound: bool) -> None:
    before, after = output_of(BLOCKS.format(is_bound=is_bound), fd=0)
    grown_bytes = (after - before) * os.sysconf("SC_PAGE_SIZE")
    # Without it they stay, so that this can fail.
    assert grown_bytes < 2**20 if is_bound else grown_bytes > 20 * 2**20


@pytest.fixture
def words() -> Iterator[LastWords]:
    with check_no_leaks():
        words = LastWords.create()
        yield words
        words.close()
        words.close()


def test_what_is_written_is_read_and_writing_goes_on(words: LastWords) -> None:
    assert words.read() == ""
    write_last_words(words.fd, "first ")
    assert words.read() == "first "
    write_last_words(words.fd, "tränen")
    assert words.read() == "first tränen"


def test_a_text_too_long_keeps_its_end(words: LastWords) -> None:
    write_last_words(words.fd, "start")
    write_last_words(words.fd, "x" * LAST_WORDS_BYTES_MAX + "the error")
    read = words.read()
    assert len(read) == LAST_WORDS_BYTES_MAX
    assert read.startswith("startx")
    assert read.endswith("the error")
    write_last_words(words.fd, "no room left")
    assert words.read() == read


def test_the_memory_cannot_grow(words: LastWords) -> None:
    with pytest.raises(PermissionError):
        os.pwrite(words.fd, b"x", LAST_WORDS_BYTES_MAX)


def test_half_a_character_is_shown_not_raised(words: LastWords) -> None:
    os.write(words.fd, "ä".encode()[:1])
    assert words.read() == "�"
