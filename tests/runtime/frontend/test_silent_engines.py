"""Engines that answer nothing, or drain: others go on with what they have."""

import math
import pathlib
from contextlib import AsyncExitStack
from typing import Any

import attrs
import pytest
import trio

from triolet.engine.messages import RequestEvent, RequestEventKind, StepOutputs
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.doubles.bed import Bed, is_quiet, open_bed
from triolet.runtime.control.calls import EngineState
from triolet.runtime.frontend.core_client import CoreClient
from triolet.runtime.frontend.engine_view import EngineView
from triolet.runtime.frontend.generation import GenerationStream
from triolet.runtime.frontend.ledger_entry import LedgerStatus
from triolet.transports.links.channel import Peer, PeerHeard, PeerSilent, Received

PARAMS = SamplingParams(max_tokens=60, seed=1, ignore_eos=True)
WINDOW = 4  # an engine stands still until its reader has read so many


async def stream_of(bed: Bed, opened: AsyncExitStack, **options: Any) -> GenerationStream:
    """A stream of which one token has come."""
    stream = await opened.enter_async_context(bed.frontend.generate("hello", PARAMS, **options))
    await anext(stream)
    return stream


def holder(client: CoreClient, stream: GenerationStream) -> Peer | None:
    entry = client.ledger.get(stream.request_id)
    return entry.peer if entry is not None else None


async def test_what_a_silent_engine_has_goes_on_elsewhere_and_it_is_back_under_its_epoch(
    null_folder: pathlib.Path,
) -> None:
    async with (
        open_bed(null_folder, window_tokens=WINDOW, engines=2) as bed,
        AsyncExitStack() as opened,
    ):
        client: CoreClient = bed.client
        wanted = (await bed.answer("hello", PARAMS)).token_ids
        stream = await stream_of(bed, opened)
        silent = holder(client, stream)
        assert silent is not None
        (other,) = [peer for peer in client.balancer.engines if peer != silent]
        client.handle_event(PeerSilent(silent, 1.0))
        assert holder(client, stream) == other
        states = {each.rank: each.state for each in client.engines.health()}
        assert states == {silent.rank: EngineState.SILENT, other.rank: EngineState.READY}
        assert list(client.balancer.engines) == [other]
        client.handle_event(PeerHeard(silent))
        assert set(client.balancer.engines) == {silent, other}
        assert (await stream.collect()).token_ids == wanted
        while not is_quiet(bed.servers[silent.rank]):  # the abort has come
            await trio.lowlevel.checkpoint()
        assert client.ledger.sent_again == 1


@pytest.mark.parametrize(("engines", "named"), [(1, False), (2, True)])
async def test_what_nobody_else_may_go_on_with_stays_where_it_is(
    null_folder: pathlib.Path, engines: int, named: bool
) -> None:
    async with (
        open_bed(null_folder, window_tokens=WINDOW, engines=engines) as bed,
        AsyncExitStack() as opened,
    ):
        client: CoreClient = bed.client
        stream = await stream_of(bed, opened, engine=0 if named else None)
        silent = holder(client, stream)
        assert silent is not None
        client.handle_event(PeerSilent(silent, 1.0))
        assert holder(client, stream) == silent
        client.handle_event(PeerHeard(silent))
        assert len((await stream.collect()).token_ids) == 60
        assert client.ledger.sent_again == 0


async def test_silence_after_silence_ends_no_stream(null_folder: pathlib.Path) -> None:
    async with (
        open_bed(null_folder, window_tokens=WINDOW, engines=2) as bed,
        AsyncExitStack() as opened,
    ):
        client: CoreClient = bed.client
        stream = await stream_of(bed, opened)
        for _ in range(2 * client.ledger.replays.settings.replay_attempts_max):
            silent = holder(client, stream)
            assert silent is not None
            client.handle_event(PeerSilent(silent, 1.0))
            assert holder(client, stream) not in (silent, None)
            client.handle_event(PeerHeard(silent))
        assert len((await stream.collect()).token_ids) == 60


async def test_a_request_waits_for_a_silent_engine_and_is_refused_by_none_that_is_forgotten(
    null_folder: pathlib.Path,
) -> None:
    async with open_bed(null_folder) as bed:
        client: CoreClient = bed.client
        (silent,) = client.balancer.engines
        client.handle_event(PeerSilent(silent, math.pi))
        assert "is silent" in str(client.engines.no_engine())
        async with bed.frontend.generate("hello", PARAMS) as stream:
            assert holder(client, stream) is None
            client.handle_event(PeerHeard(silent))
            assert len((await stream.collect()).token_ids) == 60
        client.handle_event(PeerSilent(silent, 1.0))
        bed.lose_engine(silent.rank)
        assert not client.engines.silent


async def test_what_waits_in_the_queue_of_a_silent_engine_is_moved_once(
    null_folder: pathlib.Path,
) -> None:
    async with (
        open_bed(null_folder, window_tokens=WINDOW, engines=2) as bed,
        AsyncExitStack() as opened,
    ):
        client: CoreClient = bed.client
        stream = await stream_of(bed, opened)
        silent = holder(client, stream)
        (entry,) = client.ledger.entries()
        assert silent is not None
        queued = entry.output_of(RequestEvent(RequestEventKind.QUEUED))
        client.handle_event(Received(silent, StepOutputs(1, [queued])))
        assert client.ledger.placed.queued({silent}) == [entry]
        client.handle_event(PeerSilent(silent, 1.0))
        assert client.ledger.sent_again == 1


async def test_news_of_a_silence_that_come_after_an_end_are_forgotten_with_it(
    null_folder: pathlib.Path,
) -> None:
    async with open_bed(null_folder) as bed:
        client: CoreClient = bed.client
        (silent,) = client.balancer.engines
        bed.lose_engine(silent.rank)
        client.handle_event(PeerSilent(silent, 1.0))
        client.apply_membership(bed.directory.handle_starting(silent.rank, silent.epoch + 1))
        assert not client.engines.silent


# ---- silence of a host, by membership


def publish(bed: Bed, *ranks: int, **listed: Any) -> None:
    """List the engines as those of host "b", and these so: as silent, or as they are to be."""
    snapshot = bed.directory.snapshot()
    changes = listed or {"silent": True}
    engines = [
        attrs.evolve(member, host="b", **(changes if member.rank in ranks else {}))
        for member in snapshot.engines
    ]
    number = bed.client.engines.membership.number + 1
    bed.client.apply_membership(attrs.evolve(snapshot, number=number, engines=engines))


async def test_what_an_engine_of_a_silent_host_has_goes_on_elsewhere_and_it_is_not_forgotten(
    null_folder: pathlib.Path,
) -> None:
    async with (
        open_bed(null_folder, window_tokens=WINDOW, engines=2) as bed,
        AsyncExitStack() as opened,
    ):
        client: CoreClient = bed.client
        wanted = (await bed.answer("hello", PARAMS)).token_ids
        stream = await stream_of(bed, opened)
        silent = holder(client, stream)
        assert silent is not None
        (other,) = [peer for peer in client.balancer.engines if peer != silent]
        publish(bed, silent.rank)
        assert holder(client, stream) == other
        assert client.engines.is_met(silent)
        health = {each.rank: each for each in client.engines.health()}
        assert health[silent.rank].state is EngineState.SILENT
        assert health[silent.rank].host == "b"
        reason = f"engine {silent.rank} of host b is silent: nothing is heard of its host"
        assert health[silent.rank].reason == reason
        publish(bed)
        assert list(client.balancer.engines) == sorted([silent, other])
        assert (await stream.collect()).token_ids == wanted
        while not is_quiet(bed.servers[silent.rank]):  # the abort has come
            await trio.lowlevel.checkpoint()
        assert client.ledger.sent_again == 1


async def test_each_of_two_silences_is_over_by_itself(null_folder: pathlib.Path) -> None:
    async with open_bed(null_folder) as bed:
        client: CoreClient = bed.client
        (peer,) = client.balancer.engines
        publish(bed, peer.rank)
        client.handle_event(PeerSilent(peer, 1.0))
        client.handle_event(PeerHeard(peer))
        assert not client.balancer.engines, "its host is silent still"
        client.handle_event(PeerSilent(peer, 1.0))
        publish(bed)
        assert not client.balancer.engines, "its link is silent still"
        client.handle_event(PeerHeard(peer))
        assert list(client.balancer.engines) == [peer]


async def test_a_frontend_that_starts_behind_a_cut_hears_of_the_silence_by_membership(
    null_folder: pathlib.Path,
) -> None:
    async with open_bed(null_folder, engines=2) as bed:
        publish(bed, 0)
        view = EngineView()
        assert view.handle_membership(bed.client.engines.membership) == {}
        states = [(each.rank, each.state) for each in view.health()]
        assert states == [(0, EngineState.SILENT), (1, EngineState.STARTING)]
        view.handle_up(Peer("engine", 1, bed.directory.snapshot().engines[1].epoch))
        assert [peer.rank for peer in view.taking()] == [1]
        assert "engine 0 of host b is silent" in str(view.no_engine(0))


async def test_what_stays_at_a_silent_host_waits_for_another_engine_when_it_is_lost(
    null_folder: pathlib.Path,
) -> None:
    async with (
        open_bed(null_folder, window_tokens=WINDOW) as bed,
        AsyncExitStack() as opened,
    ):
        client: CoreClient = bed.client
        stream = await stream_of(bed, opened)
        publish(bed, 0)
        assert holder(client, stream) is not None, "nobody else may go on"
        snapshot = bed.client.engines.membership
        (member,) = snapshot.engines
        lost = attrs.evolve(
            snapshot, number=snapshot.number + 1, engines=[], removed={0: member.epoch}
        )
        client.apply_membership(lost)
        assert holder(client, stream) is None
        assert not client.engines.silent
        entry = client.ledger.get(stream.request_id)
        assert entry is not None
        assert entry.state.status is LedgerStatus.UNPLACED


# ---- engines that drain, by membership


async def test_an_engine_that_drains_takes_nothing_and_then_gives_away_what_it_runs(
    null_folder: pathlib.Path,
) -> None:
    async with (
        open_bed(null_folder, window_tokens=WINDOW, engines=2) as bed,
        AsyncExitStack() as opened,
    ):
        client: CoreClient = bed.client
        wanted = (await bed.answer("hello", PARAMS)).token_ids
        stream = await stream_of(bed, opened)
        drained = holder(client, stream)
        assert drained is not None
        (other,) = [peer for peer in client.balancer.engines if peer != drained]
        publish(bed, drained.rank, draining=True)
        assert list(client.balancer.engines) == [other]
        assert holder(client, stream) == drained
        reasons = {each.rank: each.reason for each in client.engines.health()}
        assert reasons[drained.rank] == f"engine {drained.rank} of host b is draining"
        publish(bed, drained.rank, draining=True, emptying=True)
        assert holder(client, stream) == other
        while not is_quiet(bed.servers[drained.rank]):  # the abort has come
            await trio.lowlevel.checkpoint()
        assert (await stream.collect()).token_ids == wanted


async def test_what_waits_at_an_engine_that_drains_is_asked_back_whoever_has_less_to_do(
    null_folder: pathlib.Path,
) -> None:
    async with (
        open_bed(null_folder, window_tokens=WINDOW, engines=2) as bed,
        AsyncExitStack() as opened,
    ):
        client: CoreClient = bed.client
        stream = await stream_of(bed, opened, engine=None)
        drained = holder(client, stream)
        entry = client.ledger.get(stream.request_id)
        assert drained is not None
        assert entry is not None
        queued = entry.output_of(RequestEvent(RequestEventKind.QUEUED))
        client.handle_event(Received(drained, StepOutputs(1, [queued])))
        publish(bed, drained.rank, draining=True)
        assert client.ledger.placed.queued() == []  # it was asked back; as it runs, it stays
        assert len((await stream.collect()).token_ids) == 60
        assert client.ledger.sent_again == 0


async def test_what_nobody_else_can_take_runs_on_where_it_drains(null_folder: pathlib.Path) -> None:
    async with open_bed(null_folder, window_tokens=WINDOW) as bed, AsyncExitStack() as opened:
        client: CoreClient = bed.client
        stream = await stream_of(bed, opened)
        drained = holder(client, stream)
        assert drained is not None
        publish(bed, drained.rank, draining=True, emptying=True)
        assert holder(client, stream) == drained
        assert len((await stream.collect()).token_ids) == 60
