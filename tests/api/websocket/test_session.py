"""Sessions on a socket: lanes, cancel, credit, resuming, limits, drain, keepalive, firewalls."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from triolet.api.application import Application
from triolet.api.serving.connection import run_connection
from triolet.api.settings import ServerLimits, SocketLimits
from triolet.engine.errors import EngineDied
from triolet.engine.messages import RequestEvent, RequestEventKind
from triolet.runtime.errors import Overloaded

from ..fakes import Fail, FakeGenerator, Say, make_application, open_connection, open_responses
from ..serving.test_connection import HANDSHAKE
from .socket_client import TERMINALS, SocketClient, open_socket

SLOW = [Say("a"), Say("b", after_s=1000)]


def limited(**socket_limits: float) -> ServerLimits:
    return ServerLimits(socket=SocketLimits(**socket_limits))  # type: ignore[arg-type]


@asynccontextmanager
async def open_slow_socket(application: Application) -> AsyncIterator[SocketClient]:
    """A client whose connection holds one write until it is read; the server is cancelled first."""
    client, server = trio.testing.lockstep_stream_pair()
    async with open_responses(application), trio.open_nursery() as nursery:
        nursery.start_soon(run_connection, server, application)
        socket = SocketClient(client)
        assert await socket.handshake() == 101
        yield socket
        nursery.cancel_scope.cancel("the test is over")


async def test_one_response_on_the_default_lane() -> None:
    async with open_socket(make_application()) as client:
        await client.create("hi", stream=True)  # Codex sends it; ignored on sockets
        events = await client.receive_until(*TERMINALS)
    assert [event["sequence_number"] for event in events][-1] == 28
    assert all("stream_id" not in event for event in events)
    assert "".join(e.get("delta", "") for e in events) == "Hello world"


async def test_lanes_interleave_and_a_slow_one_blocks_none(
    autojump_clock: trio.testing.MockClock,
) -> None:
    generator = FakeGenerator(scripts={"slow": SLOW})
    async with open_socket(make_application(generator)) as client:
        await client.create("slow", "a")
        for name in ("b", "c", "d"):
            await client.create("hi", name)
        done: list[str] = []
        while len(done) < 3:
            events = await client.receive_until("response.completed")
            done.append(events[-1]["stream_id"])
        assert sorted(done) == ["b", "c", "d"]
        assert trio.current_time() < 500
        await trio.testing.wait_all_tasks_blocked()
        assert len(generator.active) == 1


async def test_a_lane_is_first_in_first_out(autojump_clock: trio.testing.MockClock) -> None:
    generator = FakeGenerator(scripts={"one": [Say("1", after_s=5)], "two": [Say("2")]})
    async with open_socket(make_application(generator)) as client:
        await client.create("one", "a")
        await client.create("two", "a")
        first = await client.receive_until("response.completed")
        second = await client.receive_until("response.completed")
    assert [e["delta"] for e in first + second if "delta" in e] == ["1", "2"]
    assert second[0]["type"] == "response.created"


async def test_token_ids_on_request() -> None:
    async with open_socket(make_application()) as client:
        await client.create("hi", runtime={"token_ids": True})
        events = await client.receive_until(*TERMINALS)
    ids: list[int] = []
    for event in events:
        if "token_ids" in event:
            assert event["token_index"] == len(ids)
            ids += event["token_ids"]
    assert ids == [0, 1, 2]


@pytest.mark.parametrize("by", ["response_id", "stream_id"])
async def test_cancel_on_the_socket(by: str, autojump_clock: trio.testing.MockClock) -> None:
    generator = FakeGenerator(SLOW)
    async with open_socket(make_application(generator)) as client:
        await client.create("hi", "a")
        created = (await client.receive_until("response.output_text.delta"))[0]
        values = {"response_id": created["response"]["id"], "stream_id": "a"}
        await client.send({"type": "response.cancel", by: values[by]})
        last = await client.finish()
        assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
        assert last["response"]["usage"]["output_tokens"] == 1
        await client.send({"type": "response.cancel", "stream_id": "a"})
        error = await client.event()
        assert error["error"]["code"] == "response_not_found"
    assert trio.current_time() < 500
    assert len(generator.aborted) == 1


async def test_leaving_aborts_all_lanes(autojump_clock: trio.testing.MockClock) -> None:
    generator = FakeGenerator(SLOW)
    application = make_application(generator)
    async with open_socket(application) as client:
        for name in "abc":
            await client.create("hi", name)
        await trio.testing.wait_all_tasks_blocked()
        assert len(generator.active) == 3
    await trio.testing.wait_all_tasks_blocked()
    assert trio.current_time() < 500
    assert len(generator.aborted) == 3
    assert application.counters.sockets_active == 0


async def test_closing_in_order_is_answered() -> None:
    async with open_socket(make_application()) as client:
        await client.close()
        assert await client.close_code() == 1000


async def test_errors_of_a_request_leave_the_lane_usable() -> None:
    generator = FakeGenerator(refuse=Overloaded(2.5))
    async with open_socket(make_application(generator)) as client:
        await client.create("hi", "a")
        error = await client.event()
        assert (error["type"], error["status"], error["stream_id"]) == ("error", 429, "a")
        assert error["error"]["headers"] == {"retry-after": "3"}
        generator.refuse = None
        await client.create("hi", "a", tools=[{}])
        error = await client.event()
        assert (error["error"]["param"], error["stream_id"]) == ("tools[0].type", "a")
        await client.create("hi", "a")
        assert (await client.finish())["type"] == "response.completed"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineDied("engine 0", "was killed by SIGKILL"), "engine_died"),
        (ZeroDivisionError("secret 0x7f"), "internal_error"),
    ],
)
async def test_a_failure_ends_its_response_alone(error: Exception, code: str) -> None:
    generator = FakeGenerator(scripts={"die": [Say("a"), Fail(error)]})
    async with open_socket(make_application(generator)) as client:
        await client.create("die", "a")
        last = await client.finish()
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == code
        assert "secret" not in last["response"]["error"]["message"]
        await client.create("hi", "a")
        assert (await client.finish())["type"] == "response.completed"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "invalid_json"),
        ("[" * 100_000, "invalid_json"),
        ('{"type":"response.create","stream_id":"a b"}', "invalid_stream_id"),
        ('{"type":7}', "invalid_type"),
        ('{"type":""}', "unknown_event"),
        ("{}", "missing_required_parameter"),
    ],
)
async def test_bad_messages_are_answered(message: str, code: str) -> None:
    async with open_socket(make_application()) as client:
        await client.send(message)
        error = await client.event()
        assert error["error"]["code"] == code
        await client.create("hi")
        assert (await client.finish())["type"] == "response.completed"


async def test_steering_is_refused_and_returns_the_input() -> None:
    async with open_socket(make_application()) as client:
        await client.send({"type": "response.steer", "previous_response_id": "r", "input": "x"})
        event = await client.event()
        assert event["type"] == "response.steer.failed"
        assert event["steer"] == {"input": "x", "previous_response_id": "r"}
        await client.send('\ufeff{"type": "response.steer"}')  # a byte order mark is ignored
        assert (await client.event())["type"] == "response.steer.failed"
        await client.send({"type": "response.inject", "response_id": "r", "input": [{}]})
        event = await client.event()
        assert event["type"] == "response.inject.failed"
        assert (event["response_id"], event["input"]) == ("r", [{}])


async def test_a_lane_above_the_limit_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    application = make_application(FakeGenerator(SLOW), limits=limited(lanes_active_max=2))
    async with open_socket(application) as client:
        for name in ("a", "b", "c"):
            await client.create("hi", name)
        events = await client.receive_until("error")
        assert events[-1]["stream_id"] == "c"
        assert events[-1]["error"]["code"] == "websocket_stream_limit_reached"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\x01a", 1002),  # not masked
        (b"\x81\x81\0\0\0\0\xff", 1007),
        (b"\x01\x81\0\0\0\0{" + b"\x00\x81\0\0\0\0 " * 8, 1008),  # too many fragments
        (b"\x81\xfe\x03\xe9\0\0\0\0", 1009),  # too long
    ],
    ids=str,
)
async def test_what_the_guard_refuses_closes_with_its_code(data: bytes, code: int) -> None:
    limits = limited(fragments_per_message_max=8, message_bytes_max=1000)
    application = make_application(limits=limits)
    async with open_socket(application) as client:
        await client.create("hi")
        await client.finish()
        await client.stream.send_all(data)
        assert await client.close_code() == code
        assert await client.stream.receive_some() == b""
    assert application.counters.connections_failed == 0


async def test_errors_that_are_not_read_close_with_1008() -> None:
    application = make_application(limits=limited(waiting_errors_max=3))
    async with open_slow_socket(application) as socket:
        for _ in range(10):
            await socket.send("{")
            await trio.testing.wait_all_tasks_blocked()
        while await socket.receive() is not None:
            pass
        assert socket.closed is not None
        assert socket.closed[0] == 1008


async def test_a_client_without_pongs_is_cut(autojump_clock: trio.testing.MockClock) -> None:
    application = make_application(limits=limited(ping_s=20, pong_s=20))
    async with open_socket(application) as client:
        client.answers_pings = False
        with pytest.raises((trio.BrokenResourceError, AssertionError)):
            await client.receive_until("never")
        assert 39 < trio.current_time() < 42


async def test_a_client_with_pongs_stays(autojump_clock: trio.testing.MockClock) -> None:
    async with open_socket(make_application()) as client:
        with trio.move_on_after(200):
            await client.receive()
        await client.create("hi")
        assert (await client.finish())["type"] == "response.completed"


async def test_an_old_socket_is_closed_with_1001(autojump_clock: trio.testing.MockClock) -> None:
    generator = FakeGenerator([Say("a"), Say("b", after_s=150)])
    async with open_socket(
        make_application(generator, limits=limited(age_s=100, ping_s=999))
    ) as client:
        await client.create("hi", "a")
        await trio.sleep(101)
        await client.create("late", "b")
        refusal = (await client.receive_until("error"))[-1]
        assert refusal["stream_id"] == "b"
        assert refusal["error"]["code"] == "websocket_connection_limit_reached"
        await client.receive_until("response.completed")
        last = await client.event()
        assert "stream_id" not in last
        assert last["error"]["code"] == "websocket_connection_limit_reached"
        assert await client.receive() is None
        assert trio.current_time() == pytest.approx(150)
        assert client.closed is not None
        assert client.closed[0] == 1001


async def test_a_socket_that_is_refused_again_and_again_is_closed_with_1013(
    autojump_clock: trio.testing.MockClock,
) -> None:
    generator = FakeGenerator([Say("a"), Say("b", after_s=50)])
    async with open_socket(make_application(generator, limits=limited(overloads_max=3))) as client:

        async def refuse(times: int) -> None:
            generator.refuse = Overloaded(2.5)
            for _ in range(times):
                await client.create("hi", "b")
                assert (await client.receive_until("error"))[-1]["status"] == 429
            generator.refuse = None

        await refuse(2)
        await client.create("hi", "a")
        await client.receive_until("response.output_text.delta")
        await refuse(3)
        await client.create("late", "b")
        assert (await client.receive_until("error"))[-1]["status"] == 429
        await client.receive_until("response.completed")
        last = await client.event()
        assert (last["status"], last["error"]["code"]) == (503, "server_overloaded")
        assert await client.close_code() == 1013
        assert trio.current_time() == pytest.approx(50)


async def test_a_drain_ends_what_runs_then_closes_with_1012(
    autojump_clock: trio.testing.MockClock,
) -> None:
    generator = FakeGenerator([Say("a"), Say("b", after_s=5)])
    application = make_application(generator)
    async with trio.open_nursery() as nursery, open_socket(application) as client:
        await client.create("hi", "a", runtime={"events": True})
        await client.create("queued", "a")
        await client.receive_until("response.output_text.delta")
        nursery.start_soon(application.drain, 10)
        assert (await client.receive_until("runtime.draining"))[-1]["deadline_ms"] == 10_000
        await client.create("late", "b")
        assert (await client.receive_until("error"))[-1]["error"]["code"] == "server_draining"
        assert (await client.finish())["type"] == "response.completed"
        assert (await client.receive_until("error"))[-1]["stream_id"] == "a"
        assert await client.close_code() == 1012
        assert trio.current_time() < 8


@pytest.mark.parametrize("age_s", [1000, 5], ids=["young", "at its age limit"])
async def test_a_drain_cuts_what_outstays_the_grace(
    age_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    generator = FakeGenerator(SLOW)
    application = make_application(generator, limits=limited(age_s=age_s, ping_s=999))
    async with trio.open_nursery() as nursery, open_socket(application) as client:
        await client.create("hi", "a")
        await client.receive_until("response.output_text.delta")
        await trio.sleep(10)
        nursery.start_soon(application.drain, 10)
        while await client.receive() is not None:
            pass
        assert client.closed is not None
        assert client.closed[0] == 1012
        assert 19 < trio.current_time() < 30
    assert len(generator.aborted) == 1


async def test_early_frames_behind_the_handshake_are_read() -> None:
    async with open_connection(make_application()) as stream:
        await stream.send_all(HANDSHAKE + b"\x81\x81\0\0\0\0{")
        received = b""
        while b"invalid_json" not in received:
            data = await stream.receive_some(4096)
            assert data
            received += data


async def test_a_client_that_reads_nothing_is_cut_after_the_write_deadline(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its lanes are aborted, and nothing follows the half-written frame."""
    generator = FakeGenerator([Say("a", after_s=1), Say("b", after_s=1000)])
    application = make_application(generator)
    async with open_slow_socket(application) as socket:
        await socket.create("hi", "a")
        await trio.sleep(60)  # pings and events wait
        assert application.counters.connections_active == 0
        assert len(generator.aborted) == 1
        received = b""
        while data := await socket.stream.receive_some(2**16):
            received += data
    assert b"response.completed" not in received


async def test_cancelling_the_connection_in_mid_send_cuts_it() -> None:
    async with open_slow_socket(make_application()) as socket:
        await socket.create("hi", "a")
        await trio.testing.wait_all_tasks_blocked()
    socket.protocol.receive_data(bytes(await socket.stream.receive_some(2**20)))
    with pytest.raises(AssertionError, match="1006"):
        await socket.receive_until("never")


async def test_a_lane_opens_no_further_response_while_its_last_one_is_unwritten() -> None:
    generator = FakeGenerator()
    async with open_slow_socket(make_application(generator)) as socket:
        for _ in range(6):
            await socket.create("hi", "a")
        await trio.testing.wait_all_tasks_blocked()
        assert 1 <= len(generator.calls) <= 2


STEADY = [Say(str(number), after_s=1) for number in range(9)]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join([event.get("delta", "") for event in events])


async def lose_socket_after(application: Application, deltas: int) -> tuple[str, str, int]:
    """The id of a response whose socket is lost, what it had said, and the last number."""
    async with open_socket(application) as client:
        await client.create("hi", runtime={"keep_s": 5})
        events: list[dict[str, Any]] = []
        for _ in range(deltas):
            events += await client.receive_until("response.output_text.delta")
        response_id = events[0]["response"]["id"]
        assert isinstance(response_id, str)
        return response_id, text_of(events), events[-1]["sequence_number"]


@pytest.mark.parametrize("wait_s", [0.0, 2.5, 60.0])
async def test_another_socket_resumes_in_a_lane_of_its_own(
    wait_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    """While it goes on, or long after it has ended."""
    script = STEADY if wait_s < 5 else STEADY[:5]
    application = make_application(FakeGenerator(script))
    async with open_responses(application):
        response_id, said, number = await lose_socket_after(application, 3)
        await trio.sleep(wait_s)
        async with open_socket(application) as client:
            resume = {"type": "response.resume", "response_id": response_id, "stream_id": "r"}
            await client.send({**resume, "starting_after": number})
            rest = await client.receive_until(*TERMINALS)
            await client.create("hi", "r")
            assert (await client.receive_until(*TERMINALS))[0]["type"] == "response.created"
    assert said + text_of(rest) == "".join([piece.text for piece in script])
    assert {event["stream_id"] for event in rest} == {"r"}
    numbers = [event["sequence_number"] for event in rest]
    assert numbers == sorted(set(numbers))
    assert numbers[0] > number


async def test_a_lane_resumes_in_its_turn(autojump_clock: trio.testing.MockClock) -> None:
    application = make_application(FakeGenerator([Say("a", after_s=1), Say("b", after_s=1)]))
    async with open_socket(application) as client:
        await client.create("hi", "a")
        created = (await client.receive_until("response.created"))[0]
        resume = {"type": "response.resume", "response_id": created["response"]["id"]}
        await client.send({**resume, "stream_id": "a"})
        first = await client.receive_until(*TERMINALS)
        again = await client.receive_until(*TERMINALS)
    assert text_of(first) == text_of(again) == "ab"
    assert again[0] == created
    assert again[-1] == first[-1]


@pytest.mark.parametrize(
    ("event", "status", "code", "param"),
    [
        ({"type": "response.resume", "response_id": "resp_0"}, 404, "response_not_found",
         "response_id"),
        ({"type": "response.resume", "response_id": "DONE", "starting_after": 99}, 400,
         "invalid_value", "starting_after"),
        ({"type": "response.create", "previous_response_id": "resp_0", "input": "x"}, 404,
         "previous_response_not_found", "previous_response_id"),
        ({"type": "response.create", "input": "x", "runtime": {"keep_s": 1e9}}, 400,
         "invalid_parameter", "runtime.keep_s"),
        ({"type": "runtime.credit", "add": 4}, 404, "response_not_found", None),
        ({"type": "response.cancel", "response_id": 7}, 400, "invalid_type", "response_id"),
    ],
)  # fmt: skip
async def test_mistakes_are_answered_with_the_clients_own_name_of_the_event(
    event: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    async with open_socket(make_application()) as client:
        await client.create("hi")
        done = (await client.receive_until("response.completed"))[-1]["response"]["id"]
        if event.get("response_id") == "DONE":
            event = {**event, "response_id": done}
        await client.send({**event, "event_id": "mine", "stream_id": "a"})
        error = await client.event()
        assert (error["status"], error["error"]["code"]) == (status, code)
        assert (error["error"]["param"], error["stream_id"]) == (param, "a")
        assert error["error"]["event_id"] == "mine"
        await client.create("hi", "a")
        assert (await client.finish())["type"] == "response.completed"


async def test_a_conversation_on_one_socket_as_codex_has_it() -> None:
    generator = FakeGenerator()
    async with open_socket(make_application(generator)) as client:
        await client.create("hi", generate=False, store=False, instructions="Be brief")
        warm = await client.receive_until(*TERMINALS)
        assert [event["type"] for event in warm] == [
            "response.created",
            "response.in_progress",
            "response.completed",
        ]
        assert warm[-1]["response"]["output"] == []
        assert warm[-1]["response"]["usage"]["output_tokens"] == 0
        previous_id = warm[-1]["response"]["id"]
        await client.send(
            {"type": "response.create", "previous_response_id": previous_id, "store": False}
        )
        turn = await client.receive_until(*TERMINALS)
        assert text_of(turn) == "Hello world"
        await client.create("more", "fork", previous_response_id=turn[-1]["response"]["id"])
        assert (await client.finish())["type"] == "response.completed"
    prompt: Any = generator.calls[-1].prompt
    assert [message["content"] for message in prompt.messages] == ["hi", "Hello world", "more"]


async def test_what_a_socket_did_not_store_ends_with_it() -> None:
    application = make_application()
    async with open_responses(application):
        async with open_socket(application) as client:
            await client.create("hi", store=False)
            await client.receive_until(*TERMINALS)
            assert application.responses.store.kept == 1
        await trio.testing.wait_all_tasks_blocked()
        assert application.responses.store.kept == 0


async def test_credit_is_granted_by_lane_or_by_id(autojump_clock: trio.testing.MockClock) -> None:
    generator = FakeGenerator(SLOW)
    async with open_socket(make_application(generator)) as client:
        await client.create("hi", "a", runtime={"credit": 5})
        created = (await client.receive_until("response.output_text.delta"))[0]
        await client.send({"type": "runtime.credit", "stream_id": "a", "add": 3})
        response_id = created["response"]["id"]
        await client.send({"type": "runtime.credit", "response_id": response_id, "add": 4})
        await client.send({"type": "response.cancel", "stream_id": "a"})
        await client.receive_until(*TERMINALS)
    assert (generator.calls[0].options.credit, generator.granted) == (5, [3, 4])


async def test_two_sockets_read_one_response_and_one_may_leave(
    autojump_clock: trio.testing.MockClock,
) -> None:
    application = make_application(FakeGenerator(STEADY))
    async with open_socket(application) as other:
        async with open_socket(application) as one:
            await one.create("hi")
            created = await one.event()
            resume = {"type": "response.resume", "response_id": created["response"]["id"]}
            await other.send(resume)
            await trio.sleep(2)
        events = await other.receive_until(*TERMINALS)
    assert text_of(events) == "012345678"
    assert events[-1]["type"] == "response.completed"


async def test_losing_the_socket_at_every_checkpoint_leaves_nothing() -> None:
    generator = FakeGenerator([Say(text) for text in "abcdef"])
    application = make_application(generator)
    async with open_responses(application):
        for steps in range(0, 60, 3):
            async with open_socket(application) as client:
                await client.create("hi", "a")
                await client.create("hi", "b")
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            assert (application.responses.store.active, generator.active) == (0, {})
            assert application.counters.sockets_active == 0
    assert application.counters.connections_failed == 0


async def test_events_of_a_request_for_those_who_asked() -> None:
    queued = RequestEvent(RequestEventKind.QUEUED, 3)
    application = make_application(FakeGenerator([Say("a", events=(queued,))]))
    async with open_socket(application) as client:
        await client.create("hi", "a", runtime={"events": True})
        events = await client.receive_until(*TERMINALS)
    (notice,) = [event for event in events if event["type"] == "runtime.queued"]
    assert (notice["position"], notice["stream_id"]) == (3, "a")


async def test_a_cancel_that_follows_at_once_is_not_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The response has no id yet, and its lane names it all the same; the next one is not meant."""
    generator = FakeGenerator(SLOW, scripts={"again": [Say("c")]}, opens_after_s=1)
    async with open_socket(make_application(generator)) as client:
        await client.create("hi", "a")
        await client.send({"type": "response.cancel", "stream_id": "a"})
        await client.create("again", "a")
        last = await client.finish()
        assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
        again = await client.receive_until(*TERMINALS)
        assert (again[-1]["type"], text_of(again)) == ("response.completed", "c")
    assert trio.current_time() < 500


async def test_credit_that_follows_at_once_is_not_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    generator = FakeGenerator(opens_after_s=1)
    async with open_socket(make_application(generator)) as client:
        await client.create("hi", "a", runtime={"credit": 0})
        await client.send({"type": "runtime.credit", "stream_id": "a", "add": 40})
        await client.send({"type": "runtime.credit", "stream_id": "a", "add": 2})
        assert (await client.finish())["type"] == "response.completed"
    assert sum(generator.granted) == 42
