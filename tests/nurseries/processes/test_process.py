"""A process is owned by its block: real children, real signals, nothing left afterwards."""

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from triolet.fuzz.other_process import kept_from_ending
from triolet.nurseries.processes.kernel import Kernel
from triolet.nurseries.processes.last_words import LastWords
from triolet.nurseries.processes.process import (
    OOM_LOOK_S,
    LadderTimes,
    Process,
    ProcessSpec,
    open_process,
    run_process,
    shut_down_process,
)
from triolet.nurseries.processes.process_exit import (
    ProcessDied,
    ProcessExit,
    ProcessStuck,
)
from triolet.nurseries.processes.spawned import inherited, selected
from triolet.nurseries.tasks.background import start_background_task

from ...leaks import check_no_leaks, process_exists
from ..child_programs import (
    DEADLINE_S,
    HASTY,
    PATIENT,
    open_child,
    reap,
    receive_ready,
    receive_word,
    spec_of,
    tell,
    wait_pid_gone,
)

pytestmark = pytest.mark.slow


async def test_leaving_the_block_asks_and_reaps() -> None:
    async with open_child("obedient", until_ready=False) as process:
        assert await receive_ready(process) == "ready"
    assert process.exit == ProcessExit("obedient", process.pid, code=0, signal=None)
    assert not process_exists(process.pid)


async def test_a_leaked_copy_of_the_death_pipe_does_not_hide_the_order() -> None:
    """As a program that forks while the block is open would have one."""
    with check_no_leaks():
        async with open_process(spec_of("obedient"), ladder=PATIENT) as process:
            await receive_ready(process)
            leaked_fd = os.dup(process._death_fd)
        assert process.exit is not None
        assert process.exit.code == 0
        os.close(leaked_fd)


@pytest.mark.parametrize(
    ("order", "code", "number", "sentence"),
    [
        ("exit 7", 7, None, "exited with code 7"),
        (f"kill {signal.SIGKILL.value}", None, signal.SIGKILL, "was killed by SIGKILL"),
    ],
)
async def test_a_death_in_the_block_is_seen_and_described(
    order: str, code: int | None, number: int | None, sentence: str
) -> None:
    async with open_child("on_order") as process:
        tell(process, order)
        seen = await process.wait_exited()
        assert (seen.code, seen.signal) == (code, number)
        assert seen.describe() == sentence
        assert await process.wait_exited() is seen
        process.send_signal(signal.SIGTERM)
        process.kill_group()


@pytest.mark.parametrize("module", ["deaf", "keeps_lock"])
async def test_a_process_that_cannot_be_asked_ends_in_sigkill(module: str) -> None:
    """It ignores all it can, or C code keeps its interpreter lock for good."""
    async with open_child(module, ladder=HASTY) as process:
        pass
    assert process.exit is not None
    assert process.exit.describe() == "was killed by SIGKILL"


async def test_the_ladder_is_climbed_though_the_block_was_cancelled() -> None:
    with check_no_leaks(), trio.fail_after(DEADLINE_S), trio.CancelScope() as scope:
        async with open_process(spec_of("deaf"), ladder=HASTY) as process:
            await receive_ready(process)
            scope.cancel("over")
            await trio.sleep_forever()
    assert process.exit is not None
    assert not process_exists(process.pid)


async def test_what_the_block_raises_comes_bare() -> None:
    with check_no_leaks(), pytest.raises(ValueError, match="of the block"):
        async with open_process(spec_of("deaf"), ladder=HASTY):
            raise ValueError("of the block")


async def test_grandchildren_of_the_process_group_die_with_it() -> None:
    async with open_child("on_order") as process:
        tell(process, "grandchild")
        grandchild = int(await receive_word(process))
        assert process_exists(grandchild)
        tell(process, "exit 0")
        await process.wait_exited()
        await wait_pid_gone(grandchild)


async def test_a_child_that_left_its_process_group_is_killed_all_the_same() -> None:
    async with open_child("on_order") as process:
        tell(process, "leave_group")
        assert await receive_word(process) == "left"
        process.kill_group()
        assert (await process.wait_exited()).signal == signal.SIGKILL


@pytest.mark.parametrize("module", ["deaf", "keeps_lock"])
async def test_kill_9_of_a_parent_leaves_no_child(module: str) -> None:
    spec = spec_of("parent", child_of_child=module)
    async with open_child(spec, until_ready=False) as parent:
        pids = [int(pid) for pid in (await receive_ready(parent)).split()]
        assert len(pids) == 2
        parent.send_signal(signal.SIGKILL)
        for pid in pids:
            await wait_pid_gone(pid)


async def test_an_ordered_stop_goes_down_the_tree() -> None:
    spec = spec_of("parent", child_of_child="on_order")
    async with open_child(spec, until_ready=False) as parent:
        pids = [int(pid) for pid in (await receive_ready(parent)).split()]
    assert parent.exit is not None
    assert parent.exit.code == 0
    assert not any(process_exists(pid) for pid in pids)


async def test_the_child_gets_its_environment_and_no_fd_of_others() -> None:
    spec = spec_of("on_order", child_of_child="seen")
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_process(spec) as other, open_process(spec) as process:
            await receive_ready(other)
            await receive_ready(process)
            tell(process, "environment CHILD_OF_CHILD")
            assert await receive_word(process) == "seen"
            tell(process, "fds")
            # Standard streams, control, death pipe, last words, and the listing itself.
            assert len((await receive_word(process)).split()) == 3 + 3 + 1


async def test_a_stray_print_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    async with open_process(spec_of("on_order"), ladder=PATIENT) as process:
        await receive_ready(process)
        tell(process, "print hello")
        tell(process, "exit 0")
        await process.wait_exited()
    out, err = capfd.readouterr()
    assert (out, "hello" in err) == ("", True)


class StarvingKernel(Kernel):
    """The cgroup is as short of memory as a test says."""

    kills = 3

    def count_oom_kills(self) -> int:
        return self.kills


@pytest.mark.parametrize(("looks", "starved"), [(0, True), (1, True), (2, False)])
async def test_a_kill_for_want_of_memory_just_before_a_death_was_this_one(
    looks: int, starved: bool, mock_clock: trio.testing.MockClock
) -> None:
    kernel = StarvingKernel()
    spec = attrs.evolve(spec_of("deaf"), kernel=kernel)
    async with open_process(spec, ladder=HASTY) as process, trio.open_nursery() as nursery:
        for _ in range(2):  # two that wait do not look twice
            nursery.start_soon(process.wait_exited)
        kernel.kills += 1
        for _ in range(looks):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(OOM_LOOK_S)
        await trio.testing.wait_all_tasks_blocked()
        process.send_signal(signal.SIGKILL)
        how = await process.wait_exited()
    why = " (out of memory)" if starved else ""
    assert (how.describe(), how.was_killed) == (f"was killed by SIGKILL{why}", not starved)


async def test_spawning_in_a_helper_thread_is_refused() -> None:
    """PDEATHSIG is bound to the thread: a child of a helper thread dies when that idles out."""

    def spawn_without_loop() -> None:
        opening = open_process(spec_of("deaf")).__aenter__()
        try:
            opening.send(None)
        finally:
            opening.close()

    with check_no_leaks(), pytest.raises(RuntimeError, match="thread that runs the loop"):
        await trio.to_thread.run_sync(spawn_without_loop)


async def test_a_process_that_cannot_be_spawned_leaves_nothing() -> None:
    spec = ProcessSpec("wrong", "deaf", environment={"NUL": "a\0b"})
    with check_no_leaks(), pytest.raises(ValueError, match="null byte"):
        async with open_process(spec):
            raise AssertionError("it was started")


class HangingInTheKernel(Process):
    """A process that nothing reaches, and when each rung was tried."""

    tried: list[tuple[float, str]]

    def ask_to_stop(self) -> None:
        self.tried.append((trio.current_time(), "ask"))

    def send_signal(self, number: signal.Signals) -> None:
        self.tried.append((trio.current_time(), number.name))

    def kill_group(self) -> None:
        self.tried.append((trio.current_time(), "kill"))


async def test_each_rung_is_tried_once_and_a_stuck_process_is_reported(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with open_process(spec_of("deaf"), ladder=HASTY) as process:
        await receive_ready(process)
        hanging = HangingInTheKernel(
            process.spec, process.pid, process.pidfd, process.control, LastWords(-1), -1
        )
        hanging.tried = []
        mock_clock.autojump_threshold = 0
        began_s = trio.current_time()
        with pytest.raises(ProcessStuck, match=r"2 s after SIGKILL; it hangs in the kernel"):
            await shut_down_process(hanging, LadderTimes(ask_s=0.5, terminate_s=1, kill_s=2))
        waited = [(at - began_s, rung) for at, rung in hanging.tried]
        assert waited == [(0, "ask"), (0.5, "SIGTERM"), (1.5, "kill")]
        assert trio.current_time() - began_s == 3.5
        with pytest.raises(ProcessStuck):  # at once: the block that is left asks again
            await shut_down_process(hanging, LadderTimes(ask_s=0.5, terminate_s=1, kill_s=2))
        assert len(hanging.tried) == 3
        assert trio.current_time() - began_s == 3.5
        mock_clock.autojump_threshold = math.inf
        process.kill_group()
        await process.wait_exited()


async def test_a_killed_process_that_the_kernel_keeps_is_stuck_until_it_is_let_go() -> None:
    async with open_child("deaf") as process:
        with kept_from_ending(process.pid):
            with pytest.raises(ProcessStuck):
                await shut_down_process(process, LadderTimes(ask_s=0, terminate_s=0, kill_s=0))
            assert process_exists(process.pid)
        assert (await process.wait_exited()).describe() == "was killed by SIGKILL"


# In another process: a tracer that is the parent, too, can read the exit.
TRACER = """
import sys
from triolet.fuzz.other_process import stopped_thread
with stopped_thread(int(sys.argv[1])):
    print("traced", flush=True)
    sys.stdin.read()
"""


@contextmanager
def traced(pid: int) -> Iterator[None]:
    command = [sys.executable, "-c", TRACER, str(pid)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe) as tracer:
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == "traced\n"
        yield
        tracer.communicate("")


async def test_a_dead_process_that_a_debugger_keeps_is_not_waited_for() -> None:
    """Its parent cannot read its exit, and must not stand still for that."""
    async with open_child("obedient") as process:
        with traced(process.pid):
            process.send_signal(signal.SIGKILL)
            seen = await process.wait_exited()
            assert (seen.code, seen.signal) == (None, None)
            assert seen.describe() == "is gone, and how it ended is not known"
        reap(process.pid)


def test_negative_times_are_refused() -> None:
    with pytest.raises(ValueError, match="ask_s"):
        LadderTimes(ask_s=-1)


async def test_run_process_starts_when_ready_and_raises_the_death() -> None:
    async def own() -> None:
        async with trio.open_nursery() as nursery:
            run = partial(run_process, ready=receive_ready)
            worker = await start_background_task(nursery, run, spec_of("on_order"), name="worker-0")
            process, word = worker.value
            assert word == "ready"
            tell(process, "exit 0")
            await trio.sleep_forever()

    died_with_code_0 = pytest.RaisesExc(ProcessDied, match="exited with code 0")
    with check_no_leaks(), trio.fail_after(DEADLINE_S), pytest.RaisesGroup(died_with_code_0):
        await own()


async def test_run_process_returns_after_a_stop_that_was_asked_for() -> None:
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            run = partial(run_process, ready=receive_ready)
            process, _ = await nursery.start(run, spec_of("on_order"))
            process.ask_to_stop()


@pytest.mark.parametrize("module", ["dies_before_ready", "fails_at_import"])
async def test_dying_before_ready_is_a_death_not_an_end_of_file(module: str) -> None:
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        with pytest.raises(ProcessDied) as caught:
            await run_process(spec_of(module), ready=receive_ready)
        assert caught.value.exit.code in (1, 3)
        if module == "fails_at_import":
            assert "No module named 'no_such_module_anywhere'" in str(caught.value)


async def test_dying_while_ready_waits_for_something_else() -> None:
    async def never(process: Process) -> None:
        await trio.sleep_forever()

    with check_no_leaks(), trio.fail_after(DEADLINE_S), pytest.raises(ProcessDied):
        await run_process(spec_of("dies_before_ready"), ready=never)


async def test_a_ready_that_fails_ends_the_process_with_its_own_error() -> None:
    async def refuse(process: Process) -> None:
        await receive_ready(process)
        raise ValueError("wrong version")

    with check_no_leaks(), pytest.raises(ValueError, match="wrong version"):
        await run_process(spec_of("on_order"), ready=refuse)


async def test_the_death_tells_the_last_words() -> None:
    async with open_child("on_order") as process:
        tell(process, "crash")
        seen = await process.wait_exited()
    assert seen.signal == signal.SIGSEGV
    assert "Segmentation fault" in seen.last_words
    assert "its last words:\nFatal Python error" in str(ProcessDied(seen))


def test_a_child_inherits_what_is_on_the_list() -> None:
    needed = {
        **dict.fromkeys(("PATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "GOMP_SPINCOUNT"), "1"),
        **dict.fromkeys(("PYTHONPATH", "TMPDIR", "HOME", "LANG", "LC_ALL", "TZ"), "1"),
        **dict.fromkeys(("XDG_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES", "TRIOLET_ISA"), "1"),
        "TRIOLET_PASS_ENV": "MINE,TRIOLET_MY_KEY",
        "MINE": "1",
        "TRIOLET_MY_KEY": "1",
    }
    secrets = ("TRIOLET_API_KEY", "TRIOLET_ADMIN_KEY", "HF_TOKEN", "OPENAI_API_KEY", "OTHER")
    assert inherited({**needed, **dict.fromkeys(secrets, "secret")}) == needed


def test_a_role_is_given_more_by_the_beginnings_of_names() -> None:
    found = {"HF_TOKEN": "1", "https_proxy": "2", "HTTPS_PROXY": "3", "XHF_": "4"}
    assert selected(found, ("HF_", "HTTPS_PROXY")) == {
        name: value for name, value in found.items() if name != "XHF_"
    }
    assert selected(found, ()) == {}
