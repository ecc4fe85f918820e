"""Processes that were started ahead: taken over by their block, or gone with their parent."""

import attrs
import pytest
import trio

from triolet.nurseries.processes.process import open_process
from triolet.nurseries.processes.spawned import Spawned

from ...leaks import check_no_leaks
from ..child_programs import DEADLINE_S, PATIENT, receive_ready, spec_of, wait_pid_gone


def test_five_numbers_are_an_argument() -> None:
    spawned = Spawned(pid=9, pidfd=3, control_fd=4, death_fd=5, words_fd=6)
    assert Spawned.decode(spawned.encode()) == spawned
    for bad in ("", "1,2,3", "1,2,3,4,5,6", "1,2,3,4,x"):
        with pytest.raises((ValueError, TypeError)):
            Spawned.decode(bad)


@pytest.mark.slow
async def test_one_that_was_started_ahead_is_taken_over_and_stopped() -> None:
    spec = attrs.evolve(spec_of("takes_ahead", child_of_child="taken"), ahead=("obedient",))
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_process(spec, ladder=PATIENT) as process:
            pid, word = (await receive_ready(process)).split(maxsplit=1)
            assert word, "it has said that it is ready"
            process.ask_to_stop()
            assert (await process.wait_exited()).code == 0
            await wait_pid_gone(int(pid))


@pytest.mark.slow
async def test_one_that_nobody_took_over_goes_with_its_parent() -> None:
    spec = attrs.evolve(spec_of("takes_ahead"), ahead=("obedient",))
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_process(spec, ladder=PATIENT) as process:
            pid = int(await receive_ready(process))
            process.kill_group()
            await process.wait_exited()
            await wait_pid_gone(pid)


@pytest.mark.slow
async def test_one_that_cannot_start_is_told_when_it_is_taken_over() -> None:
    spec = attrs.evolve(
        spec_of("takes_ahead", child_of_child="taken"), ahead=("no_such_module_anywhere",)
    )
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_process(spec, ladder=PATIENT) as process:
            words = (await receive_ready(process)).split()
            assert len(words) == 1, "it has said nothing"
