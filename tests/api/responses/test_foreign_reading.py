"""A response of another frontend, read again, continued and deleted as if it were ours."""

from typing import Any

import pytest
import trio
import trio.testing

from ..fakes import Answer, FakeGenerator, Say, open_client
from ..websocket.socket_client import open_socket
from .test_foreign import KEYS, Server, open_server

STEADY = [Say(str(number), after_s=1) for number in range(9)]
TERMINALS = ("response.completed", "response.incomplete", "response.failed", "error")


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join([event.get("delta", "") for event in events])


async def ask(
    server: Server, frontend: int, method: str, path: str, body: object = None, key: str = "one"
) -> Answer:
    async with open_client(server.applications[frontend]) as client:
        return await client.request(method, f"/v1/responses{path}", body, KEYS[key])


async def respond(server: Server, frontend: int, **values: object) -> str:
    answer = await ask(server, frontend, "POST", "", {"input": "hi", **values})
    assert answer.status == 200, answer.body
    response_id = answer.json["id"]
    assert isinstance(response_id, str)
    return response_id


def use(server: Server, script: list[Say]) -> list[FakeGenerator]:
    for generator in server.generators:
        generator.script = script
    return server.generators


async def test_its_events_are_read_while_it_runs_and_afterwards(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_server() as server, open_client(server.applications[1]):
        use(server, STEADY)
        response_id = await respond(server, 1, background=True)
        await trio.sleep(2.5)
        for after, rest in ((3, "012345678"), (48, "678")):
            path = f"/{response_id}?stream=true&starting_after={after}"
            events = list((await ask(server, 0, "GET", path)).events())
            assert text_of(events) == rest
            assert events[-1]["type"] == "response.completed"
            numbers = [event["sequence_number"] for event in events]
            assert numbers == sorted(set(numbers))
            assert numbers[0] > after


async def test_a_socket_resumes_it(autojump_clock: trio.testing.MockClock) -> None:
    async with open_server() as server, open_client(server.applications[1]):
        use(server, STEADY)
        response_id = await respond(server, 1, background=True)
        async with open_socket(server.applications[0], KEYS["one"]) as socket:
            resume = {"type": "response.resume", "response_id": response_id, "stream_id": "r"}
            await socket.send(resume)
            events = await socket.receive_until(*TERMINALS)
            assert text_of(events) == "012345678"
            assert {event["stream_id"] for event in events} == {"r"}
            await socket.send({**resume, "starting_after": 99})
            error = await socket.receive()
            assert error is not None
            assert error["error"]["param"] == "starting_after"


async def test_a_conversation_goes_on_there_and_is_listed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_server() as server, open_client(server.applications[1]):
        generators = use(server, [Say("Hello")])
        first = await respond(server, 1, input="one")
        await respond(server, 0, input="two", previous_response_id=first)
        prompt: Any = generators[0].calls[-1].prompt
        assert [message["content"] for message in prompt.messages] == ["one", "Hello", "two"]
        items = await ask(server, 0, "GET", f"/{first}/input_items")
        assert [item["role"] for item in items.json["data"]] == ["user"]


async def test_what_cannot_be_done_there_is_told_as_here(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_server() as server, open_client(server.applications[1]):
        use(server, STEADY)
        running = await respond(server, 1, background=True)
        body = {"input": "x", "previous_response_id": running}
        answer = await ask(server, 0, "POST", "", body)
        assert (answer.error["code"], answer.error["param"]) == (
            "response_in_progress",
            "previous_response_id",
        )
        stranger = await ask(server, 0, "POST", "", body, key="two")
        assert stranger.error["code"] == "previous_response_not_found"


@pytest.mark.parametrize("is_running", [False, True])
async def test_it_is_deleted(is_running: bool, autojump_clock: trio.testing.MockClock) -> None:
    async with open_server() as server, open_client(server.applications[1]):
        generators = use(server, STEADY if is_running else [Say("a")])
        response_id = await respond(server, 1, background=is_running)
        assert (await ask(server, 0, "DELETE", f"/{response_id}")).json["deleted"]
        for frontend in (0, 1):
            assert (await ask(server, frontend, "GET", f"/{response_id}")).status == 404
        await trio.testing.wait_all_tasks_blocked()
        assert generators[1].aborted == [response_id] * is_running
