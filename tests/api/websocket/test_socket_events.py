"""What a client may say on a socket beside `response.create`: resume, credit, and its mistakes."""

from typing import Any

import pytest
import trio
import trio.testing

from triolet.api.application import Application
from triolet.runtime.frontend.generation import RequestEvent, RequestEventKind

from ..fakes import FakeGenerator, Say, make_application, open_responses
from .socket_client import TERMINALS, open_socket

STEADY = [Say(str(number), after_s=1) for number in range(9)]
SLOW = [Say("a"), Say("b", after_s=1000)]


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
        ({"type": "response.resume"}, 400, "missing_required_parameter", "response_id"),
        ({"type": "response.resume", "response_id": "resp_0"}, 404, "response_not_found",
         "response_id"),
        ({"type": "response.resume", "response_id": "DONE", "starting_after": 99}, 400,
         "invalid_value", "starting_after"),
        ({"type": "response.resume", "response_id": "DONE", "starting_after": "4"}, 400,
         "invalid_type", "starting_after"),
        ({"type": "response.create", "previous_response_id": "resp_0", "input": "x"}, 404,
         "previous_response_not_found", "previous_response_id"),
        ({"type": "response.create", "input": "x", "runtime": {"keep_s": 1e9}}, 400,
         "invalid_parameter", "runtime.keep_s"),
        ({"type": "runtime.credit", "add": 4}, 404, "response_not_found", None),
        ({"type": "runtime.credit", "response_id": "DONE"}, 400, "missing_required_parameter",
         "add"),
        ({"type": "response.cancel", "response_id": 7}, 400, "invalid_type", "response_id"),
    ],
)  # fmt: skip
async def test_mistakes_are_told_with_the_clients_own_name_of_the_event(
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
            assert application.store.kept == 1
        await trio.testing.wait_all_tasks_blocked()
        assert application.store.kept == 0


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
    assert (generator.calls[0].credit, generator.granted) == (5, [3, 4])


async def test_two_sockets_read_one_response_at_their_own_pace(
    autojump_clock: trio.testing.MockClock,
) -> None:
    application = make_application(FakeGenerator(STEADY))
    async with open_socket(application) as one, open_socket(application) as other:
        await one.create("hi")
        events = await one.receive_until("response.output_text.delta")
        response_id = events[0]["response"]["id"]
        await other.send({"type": "response.resume", "response_id": response_id})
        await trio.sleep(4)
        whole = [
            events + await one.receive_until(*TERMINALS),
            await other.receive_until(*TERMINALS),
        ]
    assert text_of(whole[0]) == text_of(whole[1]) == "012345678"


async def test_closing_one_of_two_readers_does_not_end_it(
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
            assert (application.store.active, generator.active) == (0, {})
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
