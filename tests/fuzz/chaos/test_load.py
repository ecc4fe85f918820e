"""Bystanders ask again and again, survive refusals, and end what they have begun."""

import random

import trio

from triolet.fuzz.chaos.fault_plan import Transport
from triolet.fuzz.chaos.history import Ending
from triolet.fuzz.chaos.load import Bystanders, run_script
from triolet.fuzz.chaos.scripts import PROBES
from triolet.runtime.errors import NoEngine

from ...api.fakes import FakeGenerator, Say
from .small_server import DEADLINE_S, open_small_server

WORDS = [Say(f"{number} ") for number in range(5)]


async def run_until(bystanders: Bystanders, streams: int) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bystanders.run, 1, 1)
        while len(bystanders.histories) < streams:
            await trio.lowlevel.checkpoint()
        bystanders.stopping = True


async def test_every_stream_leaves_a_history_with_an_end() -> None:
    with trio.fail_after(DEADLINE_S):
        async with open_small_server(FakeGenerator(WORDS)) as port:
            bystanders = Bystanders(port, random.Random(1))
            await run_until(bystanders, 12)
    assert {history.ending for history in bystanders.histories} == {Ending.FINISHED}
    assert {history.transport for history in bystanders.histories} == set(Transport)
    assert all(history.token_ids == [0, 1, 2, 3, 4] for history in bystanders.histories)
    assert all(history.violations == [] for history in bystanders.histories)


async def test_refusals_are_recorded_and_do_not_end_them() -> None:
    generator = FakeGenerator(WORDS, refuse=NoEngine())
    with trio.fail_after(DEADLINE_S):
        async with open_small_server(generator) as port:
            bystanders = Bystanders(port, random.Random(1))
            await run_until(bystanders, 5)
    assert {history.ending for history in bystanders.histories} == {Ending.REFUSED}
    assert {history.code for history in bystanders.histories} == {"no_engine"}


async def test_a_server_that_is_not_there_is_a_loss() -> None:
    history = await run_script(1, PROBES[0], "a stream", Transport.SSE)
    assert history.ending is Ending.LOST
