"""Requests that wait in the queue of a full engine: another one that has less to do takes them."""

import math
import pathlib
import threading
from contextlib import AsyncExitStack
from typing import Any

import attrs
import pytest
import trio

from triolet.engine.batch_table import content_hash
from triolet.engine.messages import (
    EngineStatistics,
    RequestEvent,
    RequestEventKind,
    StatisticsReport,
    StepOutputs,
)
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.doubles.bed import is_quiet, open_bed
from triolet.runtime.frontend.core_client import CoreClient
from triolet.transports.links.channel import Peer, PeerDown, PeerUp, Received

ENDLESS = SamplingParams(max_tokens=300, seed=1, ignore_eos=True)


@attrs.define(eq=False)
class HeldWorker:
    """Like `worker`, but a step waits until it is let go."""

    worker: Any
    go: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(10**6))

    def load(self, progress: Any) -> Any:
        return self.worker.load(progress)

    def hold(self) -> None:
        while self.go.acquire(blocking=False):
            pass

    def execute(self, step: Any, wait_mask: Any) -> Any:
        assert self.go.acquire(timeout=20)
        return self.worker.execute(step, wait_mask)


@pytest.mark.parametrize("is_there", [True, False])
async def test_what_a_full_engine_queues_moves_to_one_that_has_less_to_do(
    null_folder: pathlib.Path, is_there: bool
) -> None:
    held: list[HeldWorker] = []

    def wrap(worker: Any) -> HeldWorker:
        held.append(HeldWorker(worker))
        return held[-1]

    async with (
        open_bed(null_folder, engines=3, max_num_seqs=2, wrap=wrap) as bed,
        AsyncExitStack() as opened,
    ):
        client: CoreClient = bed.client
        count = client.ledger.placed.count
        wanted = (await bed.answer("hello", ENDLESS)).token_ids
        dying, full, other = client.balancer.engines
        client.handle_event(PeerDown(other, "its link is cut"))
        held[full.rank].hold()
        opening = [bed.frontend.generate("hello", ENDLESS) for _ in range(4)]
        streams = [await opened.enter_async_context(each) for each in opening]
        held[full.rank].go.release()  # a step with the first one
        while bed.servers[full.rank].core.statistics().running < 2:
            await trio.lowlevel.checkpoint()
        if is_there:  # and has too much to do when the streams have to go on elsewhere
            client.handle_event(PeerUp(other, 1))
            for _ in range(200):
                await trio.lowlevel.checkpoint()
            report_running(client, other, 100)
        bed.lose_engine(dying.rank)
        assert (count(full), count(other)) == (4, 0)
        if is_there:
            report_running(client, other, 0)
        while bed.servers[full.rank].core.statistics().waiting < 2:
            await trio.lowlevel.checkpoint()
        held[full.rank].go.release()  # it says after the step whom it has not scheduled
        while not is_there and len(client.ledger.placed.queued()) < 2:
            await trio.lowlevel.checkpoint()
        if not is_there:
            client.handle_event(PeerUp(other, 1))
        while (count(full), count(other)) != (2, 2):
            await trio.lowlevel.checkpoint()
        held[full.rank].go.release(10**6)
        assert [(await stream.collect()).token_ids for stream in streams] == [wanted] * 4
        while not all(is_quiet(bed.servers[peer.rank]) for peer in (full, other)):
            await trio.lowlevel.checkpoint()
        counts = bed.frontend.statistics().frontend
        assert (counts.requests_migrated_total, counts.requests_failed_total) == (4, 0)


async def test_what_is_refused_by_now_ends_in_the_queue_of_its_engine(
    null_folder: pathlib.Path,
) -> None:
    async with (
        open_bed(null_folder, window_tokens=4, engines=3) as bed,
        AsyncExitStack() as opened,
    ):
        client: CoreClient = bed.client
        dying, full, _ = client.balancer.engines
        opening = [bed.frontend.generate("hello", ENDLESS) for _ in range(3)]
        for stream in [await opened.enter_async_context(each) for each in opening]:
            await anext(stream)
        report_running(client, full, -100)
        bed.lose_engine(dying.rank)
        (moved,) = [entry for entry in client.ledger.placed.of(full).values() if entry.is_moved]
        queued = moved.output_of(RequestEvent(RequestEventKind.QUEUED))
        client.handle_event(Received(full, StepOutputs(1, [queued])))
        refused = {content_hash(moved.request): math.inf}
        client.apply_membership(bed.directory.handle_quarantine({}, refused))
        assert client.ledger.get(moved.request.request_id) is None
        while bed.servers[full.rank].core.unfinished_count() > 1:
            await trio.lowlevel.checkpoint()


def report_running(client: CoreClient, peer: Peer, running: int) -> None:
    """An engine says so of what it runs, all of it of other frontends."""
    report = StatisticsReport(EngineStatistics(running=running), 2**62)
    client.handle_event(Received(peer, report))
