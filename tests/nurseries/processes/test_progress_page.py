"""The progress page: what is stored is read, torn states show, and its size is fixed."""

import os

import pytest
import trio

from triolet.nurseries.processes.progress_page import (
    SLOT_BYTES,
    SlotState,
    open_page,
    open_slot,
    passes_shown,
    private_slot,
)

from ...leaks import check_no_leaks


def test_what_is_shown_is_read() -> None:
    with open_page(3) as page:
        assert page.read() == [SlotState(passes=0)] * 3
        with open_slot(page.fd, 0) as engine, open_slot(page.fd, 2) as worker:
            engine.show_step(7, 123, 250_000_000)
            worker.show_step(6)
            worker.show_busy()
            worker.show_awaits(0)
            first, empty, last = page.read()
    pid = os.getpid()
    assert first == SlotState(pid=pid, change=2, step=7, predicted_s=0.25, passes=1)
    assert empty.pid == 0
    assert last == SlotState(pid=pid, change=2, step=6, awaits=0, passes=2)
    assert last.is_busy
    assert not first.is_busy


def test_every_pass_shows() -> None:
    with open_page(1) as page, open_slot(page.fd, 0) as slot:
        seen = [page.read()[0].passes]
        for show in (slot.show_busy, slot.show_busy, slot.show_waiting, slot.show_waiting):
            show()
            seen.append(page.read()[0].passes)
    assert seen == [1, 2, 4, 5, 5]


def test_a_change_that_is_under_way_is_torn() -> None:
    with open_page(1) as page, open_slot(page.fd, 0) as slot:
        slot.show_step(1)
        os.pwrite(page.fd, (3).to_bytes(8, "little"), 8)  # the first store of the next change
        (torn,) = page.read()
        assert torn.is_torn
        assert torn.change == 3
        slot.show_step(2)
        assert not page.read()[0].is_torn


async def test_a_loop_that_waits_is_not_busy() -> None:
    with open_page(1) as page, open_slot(page.fd, 0) as slot:
        with passes_shown(slot):
            await trio.lowlevel.checkpoint()
            before = page.read()[0]
            await trio.lowlevel.checkpoint()
            after = page.read()[0]
        await trio.lowlevel.checkpoint()
        assert not page.read()[0].is_busy
    assert before.is_busy
    assert after.passes == before.passes + 2


def test_a_page_is_as_large_as_it_was_made() -> None:
    with check_no_leaks(), open_page(2) as page:
        for size in (SLOT_BYTES, 3 * SLOT_BYTES):
            with pytest.raises(PermissionError):
                os.ftruncate(page.fd, size)
        with pytest.raises(ValueError, match="no slot 2"), open_slot(page.fd, 2):
            pytest.fail("it has two places")


def test_without_a_page_there_is_a_slot_all_the_same() -> None:
    with open_slot(None, 5) as slot:
        slot.show_step(1)
    private_slot().show_busy()
