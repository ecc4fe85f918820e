"""Clients come back to their streams by number, and to responses from before."""

import pytest
import trio

from triolet.fuzz.chaos.clients import Lost, ask
from triolet.fuzz.chaos.fault_plan import Transport
from triolet.fuzz.chaos.history import Ending
from triolet.fuzz.chaos.keepsakes import Keepsakes
from triolet.fuzz.chaos.load import PROBES, is_not_yet, read_whole, start_history

from ...api.fakes import FakeGenerator, Say
from .test_faults import BOTH, DEADLINE_S, open_small_server

SCRIPT = [Say("Once"), Say(" upon"), Say(" a"), Say(" time")]
BODY = {"input": "hi", "runtime": {"token_ids": True, "keep_s": 30}}


@BOTH
@pytest.mark.parametrize("cut_after", [1, 2, 3])
async def test_a_stream_that_was_cut_is_read_on(transport: Transport, cut_after: int) -> None:
    history = start_history("a stream", PROBES[0], transport)
    history.comes_back, events = True, 0

    def cut() -> None:
        nonlocal events
        events += 1
        if events == 1 + cut_after:  # it is called once before
            raise Lost("by the test")

    with trio.fail_after(DEADLINE_S):
        async with open_small_server(FakeGenerator(SCRIPT)) as port:
            await read_whole(port, BODY, history, on_event=cut)
    assert (history.ending, history.returns) == (Ending.FINISHED, 1)
    assert history.text == "Once upon a time"
    assert history.violations == []


def test_a_frontend_without_successor_yet_is_asked_again() -> None:
    for code, again in (("response_unreachable", True), ("response_not_found", False)):
        assert is_not_yet({"type": "error", "error": {"code": code}}) is again
    assert not is_not_yet({"type": "response.failed"})


async def test_a_response_that_is_not_as_it_was_is_a_violation() -> None:
    with trio.fail_after(DEADLINE_S):
        async with open_small_server(FakeGenerator(SCRIPT)) as port:
            keepsakes = Keepsakes(port, "")
            await keepsakes.make()
            assert len(keepsakes._objects) == 4
            assert await keepsakes.check() == []
            await ask(port, "DELETE", f"/v1/responses/{list(keepsakes._objects)[1]}")
            (violation,) = await keepsakes.check()
            assert "is 404" in violation.evidence
            keepsakes._next_text = "another"
            assert len(await keepsakes.check()) == 2
