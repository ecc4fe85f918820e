"""Engine server: messages in and out, homes, counts, task trees, messages too large for one."""

import attrs
import msgspec
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from triolet.engine.config import EngineSettings
from triolet.engine.core.engine_core import EngineCore
from triolet.engine.core.homes import Fenced
from triolet.engine.messages import (
    AbortRequests,
    AddRequest,
    FinishReason,
    Grant,
    GrantCredit,
    LiveRequest,
    RequestKey,
    RequestOutput,
    Resync,
    ResyncReply,
    StatisticsReport,
    StepOutputs,
    TokenLogprobs,
    Utility,
    UtilityCall,
    UtilityReply,
)
from triolet.engine.process.server import (
    PART_BYTES_MAX,
    STATISTICS_PERIOD_S,
    TREE_CALLS_MAX,
    TREE_TIMEOUT_S,
    EngineServer,
    TreeSource,
    split_outputs,
)
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.step_messages import StepResult, WorkerReady
from triolet.transports.codec import Codec, MalformedMessage
from triolet.transports.links.channel import (
    ChannelEvent,
    Misread,
    Peer,
    PeerDown,
    PeerNotConnected,
    PeerUp,
    Received,
)

FRONTEND = Peer("frontend", 0, 1)
READY = WorkerReady(kv_blocks=16, max_model_len=64, vocab_size=100, numerics_id="n", bitwise=True)


class RecordingChannel:
    """Keeps what was sent; `down` peers refuse, as a channel does."""

    def __init__(self) -> None:
        self.sent: list[tuple[Peer, object]] = []
        self.down: set[Peer] = set()
        self.forgotten: list[Peer] = []

    @property
    def messages(self) -> list[StepOutputs]:
        """What steps brought."""
        return [message for _, message in self.sent if isinstance(message, StepOutputs)]

    @property
    def outputs(self) -> list[RequestOutput]:
        """Those that were not in columns."""
        return [output for message in self.messages for output in message.outputs]

    def send(self, peer: Peer, message: object) -> None:
        if peer in self.down:
            raise PeerNotConnected(peer)
        self.sent.append((peer, message))

    async def receive(self) -> list[ChannelEvent]:
        await trio.Event().wait()
        return []

    def break_link(self, peer: Peer, reason: str) -> None:
        raise NotImplementedError

    def forget(self, peer: Peer) -> None:
        self.forgotten.append(peer)


async def _tree() -> str:
    return "{}"


async def _never() -> str:
    await trio.sleep_forever()


def make_server(tree: TreeSource = _tree) -> tuple[EngineServer, RecordingChannel]:
    channel = RecordingChannel()
    core = EngineCore(EngineSettings(model="m"), READY)
    return EngineServer(core, channel, tree), channel


def add(request_id: str = "a", tokens: int = 4) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        attempt=1,
        prompt_token_ids=[1, 2, 3],
        sampling=SamplingParams(seed=1, max_tokens=tokens),
    )


def begin_link(server: EngineServer, peer: Peer = FRONTEND, generation: int = 1) -> None:
    """As every frontend does: its RESYNC is the first that it says on a link."""
    server.handle_event(PeerUp(peer, generation))
    server.handle_event(Received(peer, Resync([])))


def finish_step(server: EngineServer, *, token_id: int) -> None:
    """One step of the only request, as the step loop runs it."""
    step = server.core.schedule(0.0)
    assert step is not None
    server.deliver(server.core.take_outputs())
    rows = [row for row, samples in zip(step.rows, step.samples, strict=True) if samples]
    server.deliver(server.core.finish_step(StepResult(step.number, rows, [token_id]), 0.0))


def tokens_sent(channel: RecordingChannel) -> list[tuple[int, list[int]]]:
    """(first index, tokens) of whatever was told, in order."""
    told = []
    for _, message in channel.sent:
        if isinstance(message, StepOutputs):
            told += [(output.first_index, output.token_ids) for output in message.outputs]
            columns = zip(message.indices, message.token_ids, strict=True)
            told += [(index, [token_id]) for index, token_id in columns]
    return told


def reports_sent(channel: RecordingChannel) -> list[tuple[Peer, int, int]]:
    """(frontend, requests that wait or run, last attempt) of all counts that were sent."""
    return [
        (peer, report.statistics.waiting + report.statistics.running, report.last_attempt)
        for peer, report in channel.sent
        if isinstance(report, StatisticsReport)
    ]


def misread_add(**changes: object) -> Misread:
    """An ADD with such fields, as a channel tells of it."""
    codec = Codec(AddRequest)
    fields = {**msgspec.to_builtins(add()), **changes}
    with pytest.raises(MalformedMessage) as caught:
        codec.decode([b"\0" + msgspec.msgpack.encode(fields)])
    return Misread(FRONTEND, caught.value)


def errors_sent(channel: RecordingChannel) -> list[tuple[str, int, str]]:
    """(request, attempt, code) of whatever ended by an error."""
    return [
        (output.request_id, output.attempt, output.error_code)
        for _, message in channel.sent
        if isinstance(message, StepOutputs)
        for output in message.outputs
        if output.finish_reason is FinishReason.ERROR
    ]


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"priority": "high"}, "invalid_request", "priority"),
        ({"prompt_token_ids": [1, None]}, "invalid_request", "prompt_token_ids"),
        ({"sampling": {"temperature": -1.0}}, "invalid_parameter", "temperature"),
        ({"prompt_embeds": ["float32", [1, 1], 5]}, "invalid_request", "frame 5"),
    ],
)
async def test_an_add_that_cannot_be_read_is_answered_alone(
    changes: dict[str, object], code: str, words: str
) -> None:
    server, channel = make_server()
    begin_link(server)
    server.handle_event(Received(FRONTEND, add("other")))
    server.handle_event(misread_add(request_id="mine", attempt=3, **changes))
    with trio.fail_after(1):
        await server.wait_work()
    outputs = server.core.take_outputs()
    (output,) = outputs[FRONTEND.rank].outputs
    assert words in output.error
    server.deliver(outputs)
    assert errors_sent(channel) == [("mine", 3, code)]
    finish_step(server, token_id=5)
    assert tokens_sent(channel)[-1] == (0, [5])


async def test_an_attempt_that_cannot_be_read_ends_the_older_one_and_never_a_newer() -> None:
    server, channel = make_server()
    begin_link(server)
    server.handle_event(Received(FRONTEND, attrs.evolve(add(), attempt=5)))
    server.handle_event(misread_add(attempt=5, priority=""))
    server.deliver(server.core.take_outputs())
    assert errors_sent(channel) == []
    assert server.core.statistics().waiting == 1
    server.handle_event(misread_add(attempt=6, priority=""))
    server.deliver(server.core.take_outputs())
    assert errors_sent(channel) == [("a", 6, "invalid_request")]
    assert server.core.statistics().waiting == 0


async def test_an_answer_to_what_cannot_be_read_survives_a_broken_link() -> None:
    server, channel = make_server()
    begin_link(server)
    server.handle_event(PeerDown(FRONTEND, "cut"))
    server.handle_event(misread_add(priority=""))
    server.deliver(server.core.take_outputs())
    server.handle_event(PeerUp(FRONTEND, 2))
    server.handle_event(Received(FRONTEND, Resync([LiveRequest("a", 1, 0, None)])))
    assert errors_sent(channel) == [("a", 1, "invalid_request")]


async def test_a_frontend_without_a_successor_is_given_up_at_once() -> None:
    server, _ = make_server()
    begin_link(server)
    server.handle_event(Received(FRONTEND, add()))
    server.handle_listed({}, [FRONTEND.rank])
    assert server.core.unfinished_count() == 1, "a successor is to come"
    server.handle_listed({}, [])
    assert server.core.unfinished_count() == 0


SUCCESSOR = Peer("frontend", FRONTEND.rank, 2)


@pytest.mark.parametrize("is_listed", [True, False])
async def test_a_successor_goes_on_with_what_it_names(is_listed: bool) -> None:
    server, channel = make_server()
    begin_link(server)
    for name in ("a", "b"):
        server.handle_event(Received(FRONTEND, attrs.evolve(add(name), credit=1)))
    if is_listed:
        server.handle_listed({}, [FRONTEND.rank])
        server.handle_listed({SUCCESSOR.rank: SUCCESSOR.epoch}, [])
    server.handle_event(PeerUp(SUCCESSOR, 1))
    assert server.core.unfinished_count() == 2, "its RESYNC has not come"
    server.handle_event(Received(SUCCESSOR, Resync([LiveRequest("a", 1, 0, 1)])))
    assert server.core.unfinished_count() == 1
    finish_step(server, token_id=5)
    assert channel.sent[-1][0] == SUCCESSOR
    assert tokens_sent(channel) == [(0, [5])]
    server.core.check_invariants()


@pytest.mark.parametrize("has_resynced", [True, False])
async def test_whatever_a_lower_term_says_late_does_nothing(has_resynced: bool) -> None:
    server, channel = make_server()
    begin_link(server)
    server.handle_event(Received(FRONTEND, attrs.evolve(add(), credit=1)))
    server.handle_event(PeerUp(SUCCESSOR, 1))
    if has_resynced:
        server.handle_event(Received(SUCCESSOR, Resync([LiveRequest("a", 1, 0, 1)])))
    before, sent = server.core.statistics(), len(channel.sent)
    late: list[ChannelEvent] = [
        Received(FRONTEND, AbortRequests([RequestKey("a", 1)])),
        Received(FRONTEND, GrantCredit([Grant("a", 1, 99)])),
        Received(FRONTEND, attrs.evolve(add(), attempt=9)),
        Received(FRONTEND, add("late")),
        Received(FRONTEND, UtilityCall(1, Utility.STATISTICS)),
        misread_add(attempt=9, priority=""),
        Received(FRONTEND, Resync([])),
    ]
    for event in late:
        server.handle_event(event)
    server.handle_event(PeerDown(FRONTEND, "cut"))
    server.handle_event(PeerUp(FRONTEND, 2))
    server.handle_event(Received(FRONTEND, Resync([])))
    assert (server.core.statistics(), len(channel.sent)) == (before, sent)
    assert server.core.take_outputs() == {}
    assert server.homes.fenced == {Fenced.LOWER_TERM: len(late) + 1}
    assert channel.forgotten == [FRONTEND]
    if not has_resynced:
        server.handle_event(Received(SUCCESSOR, Resync([LiveRequest("a", 1, 0, 1)])))
    finish_step(server, token_id=5)
    assert (channel.sent[-1][0], tokens_sent(channel)) == (SUCCESSOR, [(0, [5])])


async def test_a_successor_that_does_not_come_in_time_finds_nothing(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    server, channel = make_server()
    await nursery.start(server.run_orphan_watch)
    begin_link(server)
    server.handle_event(Received(FRONTEND, add()))
    server.handle_listed({}, [FRONTEND.rank])
    await trio.sleep(9.0)
    server.handle_listed({SUCCESSOR.rank: SUCCESSOR.epoch}, [])
    server.handle_event(PeerUp(SUCCESSOR, 1))  # and holds its RESYNC back
    await trio.sleep(9.0)
    assert server.core.unfinished_count() == 1, "its time has begun anew"
    await trio.sleep(1.1)
    assert server.core.unfinished_count() == 0
    server.handle_event(Received(SUCCESSOR, Resync([LiveRequest("a", 1, 0, None)])))
    assert channel.sent[-1] == (SUCCESSOR, ResyncReply([RequestKey("a", 1)]))
    nursery.cancel_scope.cancel("the test is over")


async def test_a_link_that_stays_down_orphans_its_requests(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    server, _ = make_server()
    await nursery.start(server.run_orphan_watch)
    begin_link(server)
    server.handle_event(Received(FRONTEND, add()))
    await trio.sleep(60.0)
    assert server.core.unfinished_count() == 1, "it is there"
    server.handle_event(PeerDown(FRONTEND, "a gap"))
    await trio.sleep(9.9)
    assert server.core.unfinished_count() == 1
    await trio.sleep(0.2)
    assert server.core.unfinished_count() == 0
    nursery.cancel_scope.cancel("the test is over")


async def test_what_a_broken_link_loses_is_counted_and_nothing_raised() -> None:
    server, channel = make_server()
    begin_link(server)
    channel.down.add(FRONTEND)
    sent = len(channel.sent)
    server.deliver({FRONTEND.rank: StepOutputs(1, [])})
    assert (server.sends_dropped, len(channel.sent)) == (1, sent)


async def test_a_link_brings_nothing_before_its_resync_and_then_each_token_once() -> None:
    """A step that ends between the two must not tell what the RESYNC's answer tells again."""
    server, channel = make_server()
    begin_link(server)
    server.handle_event(Received(FRONTEND, add()))
    server.handle_event(PeerDown(FRONTEND, "a gap"))
    server.handle_event(PeerUp(FRONTEND, 2))
    channel.sent.clear()
    finish_step(server, token_id=5)
    server.report_statistics()
    assert (channel.sent, server.sends_dropped) == ([], 1)
    server.handle_event(Received(FRONTEND, Resync([LiveRequest("a", 1, 0, None)])))
    finish_step(server, token_id=6)
    assert channel.sent[0] == (FRONTEND, ResyncReply([]))
    assert tokens_sent(channel) == [(0, [5]), (1, [6])]


async def test_every_linked_frontend_hears_of_counts_that_changed_once() -> None:
    server, channel = make_server()
    other = Peer("frontend", 1, 1)
    begin_link(server)
    begin_link(server, other)
    server.handle_event(Received(FRONTEND, attrs.evolve(add(), attempt=7)))
    server.report_statistics()
    server.report_statistics()
    assert reports_sent(channel) == [(FRONTEND, 1, 7), (other, 1, 0)]
    finish_step(server, token_id=5)
    server.report_statistics()
    assert reports_sent(channel)[2:] == [(FRONTEND, 1, 7), (other, 1, 0)]
    server.handle_listed({other.rank: other.epoch}, [])
    server.report_statistics()
    assert reports_sent(channel)[4:] == [(other, 0, 0)]


async def test_a_report_counts_attempts_that_came_by_any_way() -> None:
    server, channel = make_server()
    begin_link(server)
    server.handle_event(misread_add(attempt=3, priority=""))
    server.report_statistics()
    server.handle_event(PeerDown(FRONTEND, "a gap"))
    server.handle_event(PeerUp(FRONTEND, 2))
    server.report_statistics()
    live = [LiveRequest("a", 8, 0, None), LiveRequest("b", 9, 0, None)]
    server.handle_event(Received(FRONTEND, Resync(live)))
    server.report_statistics()
    assert [last for _, _, last in reports_sent(channel)] == [3, 9]


async def test_counts_are_sent_when_they_change_and_at_most_once_a_period(
    mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    server, channel = make_server()
    await nursery.start(server.run_statistics)
    begin_link(server)
    await trio.testing.wait_all_tasks_blocked()
    assert len(reports_sent(channel)) == 1
    server.handle_event(Received(FRONTEND, add()))
    finish_step(server, token_id=5)
    await trio.testing.wait_all_tasks_blocked()
    assert len(reports_sent(channel)) == 1
    mock_clock.jump(STATISTICS_PERIOD_S)
    await trio.testing.wait_all_tasks_blocked()
    assert reports_sent(channel)[1:] == [(FRONTEND, 1, 1)]
    mock_clock.jump(10 * STATISTICS_PERIOD_S)
    await trio.testing.wait_all_tasks_blocked()
    assert len(reports_sent(channel)) == 2, "nothing has changed"
    nursery.cancel_scope.cancel("the test is over")


async def test_counts_are_told_at_once_though_a_tree_takes_its_time(
    nursery: trio.Nursery,
) -> None:
    server, channel = make_server(tree=_never)
    await nursery.start(server.run_utilities)
    server.handle_event(PeerUp(FRONTEND, 1))
    server.handle_event(Received(FRONTEND, UtilityCall(1, Utility.TASK_TREE)))
    await trio.testing.wait_all_tasks_blocked()
    server.handle_event(Received(FRONTEND, UtilityCall(2, Utility.STATISTICS)))
    ((peer, reply),) = channel.sent
    assert isinstance(reply, UtilityReply)
    assert (peer, reply.call_id, reply.error) == (FRONTEND, 2, "")
    assert '"kv_blocks":16' in reply.result
    nursery.cancel_scope.cancel("the test is over")


async def test_calls_for_a_tree_are_bounded(nursery: trio.Nursery) -> None:
    server, channel = make_server()
    server.handle_event(PeerUp(FRONTEND, 1))
    for call_id in range(TREE_CALLS_MAX + 1):
        server.handle_event(Received(FRONTEND, UtilityCall(call_id, Utility.TASK_TREE)))
    (refused,) = channel.sent
    assert refused == (FRONTEND, UtilityReply(TREE_CALLS_MAX, error="too many calls wait"))
    await nursery.start(server.run_utilities)
    await trio.testing.wait_all_tasks_blocked()
    assert len(channel.sent) == TREE_CALLS_MAX + 1
    assert channel.sent[-1] == (FRONTEND, UtilityReply(TREE_CALLS_MAX - 1, result="{}"))
    nursery.cancel_scope.cancel("the test is over")


async def test_a_tree_that_takes_too_long_is_given_up(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    server, channel = make_server(tree=_never)
    await nursery.start(server.run_utilities)
    server.handle_event(PeerUp(FRONTEND, 1))
    server.handle_event(Received(FRONTEND, UtilityCall(7, Utility.TASK_TREE)))
    await trio.sleep(TREE_TIMEOUT_S + 0.1)
    assert channel.sent == [(FRONTEND, UtilityReply(7, error="the task tree took too long"))]
    nursery.cancel_scope.cancel("the test is over")


def output(name: str, size: int, *, of_prompt: bool = False) -> RequestOutput:
    """Its arrays take `size` bytes."""
    told = TokenLogprobs(1, bytes(size), b"", b"") if size else None
    return RequestOutput(
        request_id=name,
        attempt=1,
        first_index=0,
        token_ids=[1],
        logprobs=None if of_prompt else told,
        prompt_logprobs=told if of_prompt else None,
    )


def message(*outputs: RequestOutput) -> StepOutputs:
    return StepOutputs(3, list(outputs), [1], [2], [3])


@pytest.mark.parametrize("sizes", [[], [0, 0], [PART_BYTES_MAX], [PART_BYTES_MAX - 1, 0, 1]])
def test_what_fits_is_one_message(sizes: list[int]) -> None:
    whole = message(*[output(str(i), size) for i, size in enumerate(sizes)])
    assert split_outputs(whole) == [whole]


@pytest.mark.parametrize("of_prompt", [False, True])
def test_what_does_not_is_several_in_order(of_prompt: bool) -> None:
    half = PART_BYTES_MAX // 2
    sizes = [half + 1, half, 0, 1, 2 * PART_BYTES_MAX, 1]
    outputs = [output(str(i), size, of_prompt=of_prompt) for i, size in enumerate(sizes)]
    parts = split_outputs(message(*outputs))
    assert [[o.request_id for o in part.outputs] for part in parts] == [
        ["0"],
        ["1", "2", "3"],
        ["4"],
        ["5"],
    ]
    assert [part.attempts for part in parts] == [[1], [], [], []]
    assert {part.step for part in parts} == {3}
