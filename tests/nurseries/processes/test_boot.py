"""A child is armed and can leave last words before anything of its own is imported."""

import pytest
import trio

from triolet.nurseries.processes.process import ProcessSpec, open_process

from ...leaks import check_no_leaks
from ..child_programs import CHILDREN, DEADLINE_S, PATIENT, receive_ready, spec_of

pytestmark = pytest.mark.slow


async def test_an_import_that_fails_is_told() -> None:
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_process(spec_of("fails_at_import"), ladder=PATIENT) as process:
            seen = await process.wait_exited()
    assert seen.code == 1
    assert "No module named 'no_such_module_anywhere'" in seen.last_words


async def test_a_module_that_is_not_there_is_told() -> None:
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_process(ProcessSpec("ghost", "triolet.no_such"), ladder=PATIENT) as process:
            seen = await process.wait_exited()
    assert "No module named triolet.no_such" in seen.last_words


async def test_the_module_is_the_main_program_already_armed() -> None:
    """`armed_at_import` looks in its first line what the kernel was asked for."""
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_process(spec_of("armed_at_import"), ladder=PATIENT) as process:
            armed, name, arguments = (await receive_ready(process)).split()
    assert (armed, name, arguments) == ("9", "__main__", "4")


async def test_the_current_folder_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHILDREN)
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_process(ProcessSpec("here", "deaf"), ladder=PATIENT) as process:
            seen = await process.wait_exited()
    assert "No module named deaf" in seen.last_words
