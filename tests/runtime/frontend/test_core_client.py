"""The client of all engines: submits, aborts, credits, deaths, and links that lose frames."""

import math
import pathlib
from contextlib import AsyncExitStack
from typing import Any

import attrs
import pytest
import trio

from triolet.engine.batch_table import content_hash
from triolet.engine.errors import EngineDied, InvalidParameter
from triolet.engine.messages import (
    AbortRequests,
    AddRequest,
    EngineStatistics,
    FinishReason,
    RequestEvent,
    RequestEventKind,
    RequestKey,
    RequestOutput,
    ResyncReply,
    StatisticsReport,
    StepOutputs,
    Utility,
)
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.doubles.bed import Bed, is_quiet, open_bed
from triolet.fuzz.doubles.link_faults import FaultKind, NthFault
from triolet.runtime.errors import (
    NoEngine,
    ProcessingFailed,
    RequestIdInUse,
    RequestQuarantined,
    ServerDraining,
    UtilityFailed,
)
from triolet.runtime.fleet.quarantine import Suspect
from triolet.runtime.frontend.client_tasks import SLICE_OUTPUTS
from triolet.runtime.frontend.core_client import CoreClient
from triolet.runtime.messages import EngineMembership
from triolet.tests.contracts.channel import running
from triolet.transports.links.channel import Peer, PeerDown, PeerNotConnected, PeerUp, Received
from triolet.transports.links.link import Side
from triolet.transports.links.link_header import LinkSettings

PARAMS = SamplingParams(max_tokens=12, seed=7, ignore_eos=True)
# More frames than one request sends in either direction; the loop ends before.
FRAMES_MAX = 60
# An autojump clock stops at each repetition to an engine that is gone: 30 s are ten then.
RARELY = LinkSettings(repeat_delay_max_s=30.0)


async def _tokens(bed: Bed, prompt: str = "hello world", **options: object) -> list[int]:
    return (await bed.answer(prompt, PARAMS, **options)).token_ids


@pytest.mark.slow
@pytest.mark.parametrize("receiver", list(Side))
@pytest.mark.parametrize("kind", list(FaultKind))
async def test_the_nth_frame_lost_doubled_or_late_changes_no_token(
    null_folder: pathlib.Path,
    kind: FaultKind,
    receiver: Side,
    autojump_clock: trio.testing.MockClock,
) -> None:
    autojump_clock.autojump_threshold = 0.05  # steps run in a thread
    async with open_bed(null_folder) as bed:
        expected = await _tokens(bed)
    for nth in range(1, FRAMES_MAX):
        fault = NthFault(kind, receiver, nth)
        async with open_bed(null_folder, fault) as bed:
            with trio.fail_after(60):
                assert await _tokens(bed) == expected, f"frame {nth}"
                await bed.wait_quiet()
        if not fault.reached:
            assert nth > 3, "a request takes more frames than that"
            return
    pytest.fail("the loop never passed without the fault being reached")


@pytest.mark.parametrize("index", [0, 100])
async def test_an_output_that_is_not_next_begins_the_link_anew_and_changes_no_token(
    null_folder: pathlib.Path, index: int
) -> None:
    async with open_bed(null_folder, window_tokens=4) as bed:
        expected = await _tokens(bed)
        async with bed.frontend.generate("hello world", PARAMS) as stream:
            await stream.__anext__()
            (peer,) = bed.client.balancer.engines
            entry = bed.client.ledger.get(stream.request_id)
            assert entry is not None
            wrong = StepOutputs(1, [], [entry.attempt], [index], [7])
            assert bed.client.handle_event(Received(peer, wrong)).tokens == []
            with pytest.raises(PeerNotConnected):
                bed.hub.send(peer, AbortRequests([]))
            assert (await stream.collect()).token_ids == expected
        await bed.wait_engines(1)
        bed.hub.send(peer, AbortRequests([]))


async def test_a_stalled_reader_pauses_its_request_and_no_other(
    null_folder: pathlib.Path,
) -> None:
    async with open_bed(null_folder, window_tokens=8) as bed:
        endless = SamplingParams(max_tokens=200, seed=1, ignore_eos=True)
        async with bed.frontend.generate("hello", endless) as stalled:
            while bed.servers[0].core.statistics().paused == 0:
                await trio.lowlevel.checkpoint()
            assert len(await _tokens(bed)) == 12
            assert stalled.collector.tokens_waiting == 8
            assert (await stalled.collect()).token_ids[:1]
            assert len(stalled.token_ids) == 200


ENDLESS = SamplingParams(max_tokens=300, seed=1, ignore_eos=True)


def holder(bed: Bed) -> Peer:
    """The engine that has requests of this frontend."""
    client: CoreClient = bed.client
    (peer,) = [peer for peer in client.balancer.engines if client.ledger.placed.count(peer)]
    return peer


def change_ready(bed: Bed, rank: int, **fields: Any) -> str:
    """What an engine says of itself, in the next membership; returns its numerics id so far."""
    ready = bed.directory.snapshot().engines[rank].ready
    assert ready is not None
    changed = attrs.evolve(ready, **fields)
    bed.client.apply_membership(bed.directory.handle_ready(rank, changed))
    return ready.numerics_id


async def test_a_stream_goes_on_where_its_engine_died(null_folder: pathlib.Path) -> None:
    async with open_bed(null_folder, window_tokens=4, engines=2) as bed:
        wanted = (await bed.answer("hello", ENDLESS)).token_ids
        opened = bed.frontend.generate("hello", ENDLESS, events=True)
        async with opened as stream:
            await anext(stream)
            bed.lose_engine(holder(bed).rank)
            seen_events = [event for output in [o async for o in stream] for event in output.events]
        assert stream.token_ids == wanted
        assert seen_events[0] == RequestEvent(RequestEventKind.MIGRATED, exact=True)
        assert seen_events[1].kind is RequestEventKind.SCHEDULED, "it did not wait"
        counts = bed.frontend.statistics().frontend
        assert (counts.requests_migrated_total, counts.requests_waiting) == (1, 0)
        assert counts.requests_failed_total == 0


async def test_without_another_engine_it_waits_and_goes_on_with_the_next(
    null_folder: pathlib.Path,
) -> None:
    async with open_bed(null_folder, window_tokens=4, engines=2) as bed:
        wanted = (await bed.answer("hello", ENDLESS)).token_ids
        opened = bed.frontend.generate("hello", ENDLESS, events=True)
        async with opened as stream:
            await anext(stream)
            first = holder(bed).rank
            numerics_id = change_ready(bed, 1 - first, numerics_id="another")
            bed.lose_engine(first)
            await trio.testing.wait_all_tasks_blocked()
            assert bed.frontend.statistics().frontend.requests_waiting == 1
            change_ready(bed, 1 - first, numerics_id=numerics_id)
            kinds = [event.kind for output in [o async for o in stream] for event in output.events]
        assert stream.token_ids == wanted
        assert kinds[:2] == [RequestEventKind.QUEUED, RequestEventKind.MIGRATED]
        assert bed.frontend.statistics().frontend.requests_waiting == 0


async def test_it_waits_no_longer_than_it_should(
    null_folder: pathlib.Path, autojump_clock: trio.testing.MockClock
) -> None:
    autojump_clock.autojump_threshold = 0.05  # steps run in a thread
    async with open_bed(null_folder, link=RARELY, window_tokens=4) as bed:
        async with bed.frontend.generate("hello", ENDLESS) as stream:
            await anext(stream)
            bed.lose_engine(0)
            began = trio.current_time()
            with pytest.raises(EngineDied, match="killed by SIGKILL, and no engine came up within"):
                await stream.collect()
            assert 29.9 < trio.current_time() - began < 32
        assert len(bed.client.ledger) == 0
        assert bed.frontend.statistics().frontend.requests_failed_total == 1


async def test_a_request_that_comes_while_no_engine_is_there_waits_for_one(
    null_folder: pathlib.Path,
) -> None:
    async with open_bed(null_folder) as bed:
        wanted = (await bed.answer("hello", ENDLESS)).token_ids
        (peer,) = bed.client.balancer.engines
        bed.client.handle_event(PeerDown(peer, "a test"))
        async with bed.frontend.generate("hello", ENDLESS, events=True) as stream:
            await trio.testing.wait_all_tasks_blocked()
            assert bed.frontend.statistics().frontend.requests_waiting == 1
            bed.client.handle_event(PeerUp(peer, 2))
            kinds = [event.kind for output in [o async for o in stream] for event in output.events]
        assert kinds[:2] == [RequestEventKind.QUEUED, RequestEventKind.SCHEDULED]
        assert stream.token_ids == wanted
        counts = bed.frontend.statistics().frontend
        assert (counts.requests_waiting, counts.requests_migrated_total) == (0, 0)


async def test_it_waits_at_a_frontend_that_is_new_while_no_engine_is_there(
    null_folder: pathlib.Path,
) -> None:
    async with open_bed(null_folder) as bed:
        bed.lose_engine(0)
        async with bed.open_successor(2) as successor:
            successor.client.handle_rebuilt()
            async with successor.generate("hello", ENDLESS):
                await trio.testing.wait_all_tasks_blocked()
                assert successor.statistics().frontend.requests_waiting == 1


async def test_one_that_waits_for_its_first_engine_in_vain_says_what_engines_do(
    null_folder: pathlib.Path, autojump_clock: trio.testing.MockClock
) -> None:
    autojump_clock.autojump_threshold = 0.05  # steps run in a thread
    async with open_bed(null_folder, link=RARELY) as bed:
        await bed.answer("hello", ENDLESS)
        bed.lose_engine(0)
        assert not bed.frontend.health().ready
        began = trio.current_time()
        with pytest.raises(NoEngine, match="engine 0 is restarting after it was killed"):
            await bed.answer("hello", ENDLESS)
        assert 29.9 < trio.current_time() - began < 32
        bed.client.apply_membership(bed.directory.handle_failed(0))
        with pytest.raises(NoEngine, match="engine 0 is failed"):
            await bed.answer("hello", ENDLESS)
        assert trio.current_time() - began < 32, "none will come"


@pytest.mark.parametrize("given_up", [True, False])
async def test_who_allows_it_goes_on_with_other_numerics(
    null_folder: pathlib.Path, autojump_clock: trio.testing.MockClock, given_up: bool
) -> None:
    autojump_clock.autojump_threshold = 0.05  # steps run in a thread
    async with open_bed(null_folder, link=RARELY, window_tokens=4, engines=2) as bed:
        async with bed.frontend.generate("hello", ENDLESS, inexact_ok=True) as stream:
            await anext(stream)
            first, began = holder(bed).rank, trio.current_time()
            change_ready(bed, 1 - first, numerics_id="another")
            bed.lose_engine(first)
            if given_up:
                bed.client.apply_membership(bed.directory.handle_failed(first))
            seen_events = [event for output in [o async for o in stream] for event in output.events]
        assert seen_events == [RequestEvent(RequestEventKind.MIGRATED, exact=False)]
        assert len(stream.token_ids) == 300
        assert (trio.current_time() - began < 15) == given_up, "its own engine may have come back"
        assert bed.frontend.statistics().frontend.requests_migrated_inexactly_total == 1


async def test_all_that_names_an_engine_goes_there(null_folder: pathlib.Path) -> None:
    async with open_bed(null_folder, engines=2) as bed:
        for _ in range(4):
            several = attrs.evolve(PARAMS, n=3)
            async with bed.frontend.generate("hello", several, engine=1) as stream:
                assert holder(bed).rank == 1
                await stream.collect()
        added = [bed.servers[rank].core.statistics().requests_added for rank in range(2)]
        assert added == [0, 12]
        for rank, bound in [
            (2, "the number of an engine, 0 to 1"),
            *((wrong, "a whole number from 0") for wrong in (-1, True, "1")),
        ]:
            with pytest.raises(InvalidParameter, match=f"engine must be {bound}"):
                await bed.answer("hello", PARAMS, engine=rank)
        bed.lose_engine(1)
        bed.client.apply_membership(bed.directory.handle_failed(1))
        with pytest.raises(NoEngine, match="engine 1 is failed"):
            await bed.answer("hello", PARAMS, engine=1)
        assert len(await _tokens(bed, engine=0)) == 12


async def test_what_names_a_dead_engine_waits_for_it_and_says_where_else_it_goes(
    null_folder: pathlib.Path, autojump_clock: trio.testing.MockClock
) -> None:
    autojump_clock.autojump_threshold = 0.05  # steps run in a thread
    async with open_bed(null_folder, link=RARELY, window_tokens=4, engines=2) as bed:
        wanted = (await bed.answer("hello", ENDLESS)).token_ids
        bed.lose_engine(1)
        began = trio.current_time()
        async with bed.frontend.generate("hello", ENDLESS, engine=1) as stream:
            seen_events = [event for output in [o async for o in stream] for event in output.events]
        assert 29.9 < trio.current_time() - began < 32
        assert seen_events == [RequestEvent(RequestEventKind.MIGRATED)]
        assert stream.token_ids == wanted


@pytest.mark.parametrize("verdict", ["innocent", "suspected", "refused"])
async def test_what_its_engine_does_not_know_goes_on_as_it_is_judged_by_now(
    null_folder: pathlib.Path, verdict: str
) -> None:
    """An engine has died of the same prompt since it was sent, and that had got lost on its way."""
    async with open_bed(null_folder) as bed:
        wanted = await _tokens(bed)
        opened = bed.frontend.generate("hello world", PARAMS, credit=4, events=True)
        async with opened as stream:
            await anext(stream)
            entry, core = bed.client.ledger.get(stream.request_id), bed.servers[0].core
            content = content_hash(entry.request)
            suspects = {content: Suspect(1000)} if verdict == "suspected" else {}
            refused = {content: math.inf} if verdict == "refused" else {}
            bed.client.apply_membership(bed.directory.handle_quarantine(suspects, refused))
            key = RequestKey(stream.request_id, entry.attempt)
            bed.hub.send(entry.peer, AbortRequests([key]))
            await bed.wait_quiet()
            bed.client.handle_event(Received(entry.peer, ResyncReply([key])))
            if verdict == "refused":
                with trio.fail_after(20), pytest.raises(RequestQuarantined):
                    await stream.collect()
                assert len(bed.client.ledger) == 0
                await bed.wait_quiet()
                return
            while not core.unfinished_count():
                await trio.lowlevel.checkpoint()
            assert bool(core.suspects) == (verdict == "suspected")
            stream.grant(8)
            kinds = [event.kind for output in [o async for o in stream] for event in output.events]
        assert RequestEventKind.MIGRATED not in kinds
        assert stream.token_ids == wanted


async def test_a_draining_engine_ends_no_stream(null_folder: pathlib.Path) -> None:
    async with open_bed(null_folder, engines=2) as bed:
        wanted = await _tokens(bed)
        bed.servers[0].core.start_drain()
        for _ in range(3):
            assert await _tokens(bed) == wanted
        counts = bed.frontend.statistics().frontend
        assert counts.requests_migrated_total == 1, "the second one is not sent there any more"
        assert bed.frontend.health().reasons == ["engine 0 is draining"]
        change_ready(bed, 1)  # a new membership: it is asked again
        for _ in range(3):
            assert await _tokens(bed) == wanted
        counts = bed.frontend.statistics().frontend
        assert (counts.requests_migrated_total, counts.requests_failed_total) == (2, 0)


@pytest.mark.parametrize("how", ["given up", "removed", "replaced"])
async def test_an_engine_that_died_before_it_was_ready_is_forgotten(bed: Bed, how: str) -> None:
    """It had linked itself already; nobody else would let go of that link."""
    early = Peer("engine", 1, 7)
    starting = bed.directory.handle_starting(early.rank, early.epoch)
    spoke = bed.mesh.open_spoke(early)
    async with running(spoke):
        spoke.connect(Peer("frontend", 0, 1), *bed.hub.endpoints)
        while early not in bed.hub.links.peers:
            await bed.client.engines_changed.wait()
        spoke.forget(Peer("frontend", 0, 1))
    bed.client.apply_membership(EngineMembership(starting.number, starting.engines[:1]))
    assert early in bed.hub.links.peers, "that snapshot does not know it yet"
    bed.client.apply_membership(bed.directory.handle_gone(early.rank, "was killed"))
    assert early in bed.hub.links.peers, "it may be this epoch that starts"
    match how:
        case "given up":
            bed.client.apply_membership(bed.directory.handle_failed(1))
        case "removed":
            bed.client.apply_membership(bed.directory.handle_removed(1))
        case "replaced":
            bed.client.apply_membership(bed.directory.handle_starting(1, 8))
    assert early not in bed.hub.links.peers
    assert len(await _tokens(bed)) == 12


async def test_a_link_that_comes_up_after_its_engine_was_replaced_is_forgotten(bed: Bed) -> None:
    """It died before it was ready, while this frontend was stopped."""
    late, me = Peer("engine", 1, 7), Peer("frontend", 0, 1)
    bed.client.apply_membership(bed.directory.handle_starting(late.rank, 8))
    spoke = bed.mesh.open_spoke(late)
    async with running(spoke):
        spoke.connect(me, *bed.hub.endpoints)
        assert (await spoke.receive())[0] == PeerUp(me, 1)
        await trio.testing.wait_all_tasks_blocked()
        spoke.forget(me)
    assert late not in bed.hub.links.peers
    assert not bed.client.engines.is_met(late)


async def test_an_id_in_use_is_refused_and_the_first_goes_on(null_folder: pathlib.Path) -> None:
    async with (
        open_bed(null_folder, window_tokens=4) as bed,
        bed.frontend.generate("hello", PARAMS, request_id="a") as stream,
    ):
        with pytest.raises(RequestIdInUse):
            await _tokens(bed, request_id="a")
        assert len((await stream.collect()).token_ids) == 12


@attrs.define(eq=False)
class Unused:
    """The sink of a request that never comes to be."""

    request_id: str
    token_ids: list[int] = attrs.field(factory=list)

    def put_token(self) -> None:
        raise AssertionError("it was sent")

    def put(self, output: RequestOutput) -> None:
        raise AssertionError("it was sent")

    def fail(self, error: Exception) -> None:
        raise AssertionError("its caller has the answer already")


async def test_a_request_that_cannot_be_encoded_leaves_no_trace(
    null_folder: pathlib.Path,
) -> None:
    """`generate` refuses all that is known to be so; nor does what it cannot know wait for ever."""
    good = AddRequest(request_id="a", attempt=0, prompt_token_ids=[9, 10], sampling=PARAMS)
    bad = attrs.evolve(good, request_id="b", priority=2**70)
    async with open_bed(null_folder) as bed:
        with pytest.raises(OverflowError):
            bed.client.submit([(good, Unused("a")), (bad, Unused("b"))])
        assert len(bed.client.ledger) == 0
        assert len(await _tokens(bed)) == 12
        await bed.wait_quiet()


async def test_a_sink_that_fails_ends_its_request_alone(null_folder: pathlib.Path) -> None:
    class Failing(Unused):
        error: Exception | None = None

        def put_token(self) -> None:
            raise ZeroDivisionError("a bug")

        def put(self, output: RequestOutput) -> None:
            assert output.first_index == 0, "only that one has more to say"

        def fail(self, error: Exception) -> None:
            self.error = error

    async with open_bed(null_folder) as bed:
        sink = Failing("a")
        request = AddRequest(request_id="a", attempt=0, prompt_token_ids=[9, 10], sampling=PARAMS)
        bed.client.submit([(request, sink)])
        assert len(await _tokens(bed)) == 12
        assert isinstance(sink.error, ProcessingFailed)
        assert "a bug" in str(sink.error)
        await bed.wait_quiet()


async def test_an_id_that_is_used_again_gets_nothing_of_the_old_request(
    null_folder: pathlib.Path,
) -> None:
    """Outputs are delivered in slices: between two of them anything may happen."""
    client: CoreClient
    async with open_bed(null_folder) as bed:
        client = bed.client
        async with bed.frontend.generate("hello", PARAMS, request_id="a", credit=0):
            entry = client.ledger.get("a")
            assert entry is not None
            assert entry.peer is not None
            end = RequestOutput(
                request_id="a",
                attempt=entry.attempt,
                first_index=1,
                token_ids=[8],
                finish_reason=FinishReason.LENGTH,
            )
            row = StepOutputs(1, [end], attempts=[entry.attempt], indices=[0], token_ids=[7])
            accepted = client.handle_event(Received(entry.peer, row))
        async with bed.frontend.generate("hello", PARAMS, request_id="a", credit=0) as stream:
            client.deliver_tokens(accepted.tokens)
            client.deliver(*accepted.outputs[0])
            assert stream.take_nowait() is None
            stream.grant(12)
            assert len((await stream.collect()).token_ids) == 12


async def test_leaving_an_ended_request_does_not_abort_one_with_its_id(bed: Bed) -> None:
    async with AsyncExitStack() as stack:
        opened = bed.frontend.generate("hello", PARAMS, request_id="a")
        first = await stack.enter_async_context(opened)
        await first.collect()
        async with bed.frontend.generate("hello", PARAMS, request_id="a", credit=1) as stream:
            await stream.__anext__()
            await stack.aclose()
            stream.grant(11)
            assert len((await stream.collect()).token_ids) == 12


async def test_utility_calls_are_answered_or_fail_with_the_engine(bed: Bed) -> None:
    (peer,) = bed.client.balancer.engines
    assert "kv_blocks" in await bed.client.call_utility(peer, Utility.STATISTICS)
    assert "step-loop" in await bed.client.call_utility(peer, Utility.TASK_TREE)
    bed.lose_engine(0)
    with pytest.raises(UtilityFailed):
        await bed.client.call_utility(peer, Utility.STATISTICS)


async def test_an_engine_is_called_by_the_channels_own_object(bed: Bed) -> None:
    (peer,) = bed.client.balancer.engines
    again = attrs.evolve(peer)
    bed.client.handle_event(PeerDown(peer, "a test"))
    bed.client.handle_event(PeerUp(again, 2))
    assert bed.client.balancer.engines[0] is again


async def test_counts_of_an_engine_that_was_forgotten_are_no_news(bed: Bed) -> None:
    """The output handler may hold them while membership tells that their sender is gone."""
    (peer,) = bed.client.balancer.engines
    held = Received(peer, StatisticsReport(EngineStatistics(running=3), 0))
    bed.lose_engine(0)
    bed.client.handle_event(held)
    assert bed.frontend.statistics().engines == {}


async def test_a_draining_client_takes_nothing_new(bed: Bed) -> None:
    bed.frontend.drain()
    with pytest.raises(ServerDraining, match="draining"):
        await _tokens(bed)
    assert not bed.frontend.health().ready
    assert all(is_quiet(server) for server in bed.servers.values())


async def test_a_client_that_never_reads_delays_nobody(null_folder: pathlib.Path) -> None:
    params = SamplingParams(max_tokens=20, seed=1, ignore_eos=True)
    async with open_bed(null_folder) as bed, bed.frontend.generate("a b", params) as idle:
        async with bed.frontend.generate("c d", params) as stream:
            assert len((await stream.collect()).token_ids) == 20
        assert idle.token_ids == []


async def test_many_outputs_at_once_leave_room_for_others(null_folder: pathlib.Path) -> None:
    """More requests than a slice holds end whole, and a task beside them makes progress."""
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await trio.lowlevel.checkpoint()

    requests = SLICE_OUTPUTS + 20
    params = SamplingParams(max_tokens=3, seed=1, ignore_eos=True)
    lengths: list[int] = []
    async with open_bed(null_folder, max_num_seqs=requests) as bed:

        async def one() -> None:
            async with bed.frontend.generate("a b", params) as stream:
                lengths.append(len((await stream.collect()).token_ids))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(beat)
            async with trio.open_nursery() as streams:
                for _ in range(requests):
                    streams.start_soon(one)
            nursery.cancel_scope.cancel("all have ended")
    assert lengths == [3] * requests
    assert beats > 3
