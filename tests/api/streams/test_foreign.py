"""Responses of another frontend: found, cancelled, hidden from others, not waited for long."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import pytest
import trio
import trio.testing

from triolet.api.application import Application
from triolet.api.errors import ApiError
from triolet.api.http.access import Authentication
from triolet.api.openai.response_id import response_id_of
from triolet.api.schema.fields import JsonObject
from triolet.api.streams.foreign import (
    ADOPTION_WAIT_S,
    CALL_S,
    CALLS_MAX,
    ForeignReader,
    ForeignStreams,
    StreamBatch,
)
from triolet.runtime.fleet.membership import reply_to
from triolet.runtime.messages import (
    ForeignCall,
    ForeignOutcome,
    ForeignReply,
    ForeignVerb,
    FrontendStates,
)

from ..fakes import Answer, FakeGenerator, Say, open_client
from ..websocket.socket_client import open_socket
from .frontends import KEYS, Server, open_server

FOREIGN = response_id_of(1, "0" * 32)


@asynccontextmanager
async def open_response(server: Server, frontend: int) -> AsyncIterator[tuple[str, Any]]:
    """The id of a response that runs there for "one", and the socket that reads it."""
    async with open_socket(server.applications[frontend], KEYS["one"]) as socket:
        await socket.create("hi")
        created = (await socket.receive_until("response.output_text.delta"))[0]
        yield created["response"]["id"], socket


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


async def test_http_gets_and_cancels_it(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        open_server() as server,
        open_response(server, 1) as (response_id, socket),
    ):
        seen = await ask(server, 0, "GET", f"/{response_id}")
        assert (seen.status, seen.json["status"]) == (200, "in_progress")
        cancelled = await ask(server, 0, "POST", f"/{response_id}/cancel")
        assert cancelled.json["status"] == "cancelled"
        assert cancelled.json["output"][0]["content"][0]["text"] == "a"
        last = (await socket.receive_until("response.incomplete"))[-1]
        assert last["response"] == cancelled.json
        again = await ask(server, 0, "POST", f"/{response_id}/cancel")
        assert again.json == cancelled.json
    assert server.generators[1].aborted == [response_id]
    assert trio.current_time() < 500


async def test_a_socket_cancels_it(autojump_clock: trio.testing.MockClock) -> None:
    async with (
        open_server() as server,
        open_response(server, 0) as (response_id, reader),
        open_socket(server.applications[1], KEYS["one"]) as socket,
    ):
        await socket.send({"type": "response.cancel", "response_id": response_id})
        last = (await reader.receive_until("response.incomplete"))[-1]
        assert last["response"]["status"] == "cancelled"
        unknown = response_id_of(0, "1" * 32)
        await socket.send({"type": "response.cancel", "response_id": unknown, "stream_id": "a"})
        error = await socket.receive()
        assert error is not None
        assert (error["error"]["code"], error["stream_id"]) == ("response_not_found", "a")


async def test_it_does_not_exist_for_another_principal(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_server() as server, open_response(server, 1) as (response_id, _):
        for method, path in (("GET", f"/{response_id}"), ("POST", f"/{response_id}/cancel")):
            answer = await ask(server, 0, method, path, key="two")
            assert (answer.status, answer.error["code"]) == (404, "response_not_found")
        assert len(server.generators[1].active) == 1


async def test_a_frontend_that_was_given_up_is_503_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_server() as server, trio.open_nursery() as nursery:

        async def get() -> None:
            answer = await ask(server, 0, "GET", f"/{FOREIGN}")
            assert (answer.status, answer.error["code"]) == (503, "response_unreachable")
            assert answer.headers["retry-after"] == "2"

        server.kill(1)
        nursery.start_soon(get)
        await trio.testing.wait_all_tasks_blocked()
        server.publish(lost=[1])
        nursery.start_soon(get)  # it is known by now
    assert trio.current_time() < 1


@attrs.define(eq=False)
class Owner:
    """Hears the calls of one caller, and says nothing by itself."""

    calls: list[ForeignCall] = attrs.field(factory=list)
    foreign: ForeignStreams = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.foreign = ForeignStreams(0, 2, 7, self.send)
        self.handle_epoch(1)

    async def send(self, message: ForeignCall | ForeignReply) -> None:
        await trio.lowlevel.checkpoint()
        assert isinstance(message, ForeignCall)
        self.calls.append(message)

    async def get(self) -> JsonObject:
        """Call, as one of its clients."""
        return await self.foreign.call(ForeignVerb.GET, FOREIGN, "p", kind=JsonObject)

    async def get_nothing(self) -> None:
        """Call, and find that nobody answers in time."""
        with pytest.raises(ApiError) as caught:
            await self.get()
        assert caught.value.status == 503
        assert trio.current_time() == pytest.approx(ADOPTION_WAIT_S)

    def handle_epoch(self, epoch: int | None) -> None:
        ready = {0: 7} if epoch is None else {0: 7, 1: epoch}
        self.foreign.handle_frontends(FrontendStates(ready))

    def reply(self, outcome: ForeignOutcome, text: str = "{}") -> None:
        """To the call that came last."""
        self.foreign.handle_reply(reply_to(self.calls[-1], outcome, text))


async def test_a_reader_goes_on_behind_what_was_taken_and_what_is_silent() -> None:
    owner = Owner()
    reader = ForeignReader(owner.foreign, ForeignVerb.EVENTS, list[int], FOREIGN, "p", None)

    async def fetch(batch: StreamBatch) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.wait_ready)
            await trio.testing.wait_all_tasks_blocked()
            owner.reply(ForeignOutcome.FOUND, msgspec.json.encode(batch).decode())

    await fetch(StreamBatch([], 5, is_last=False))
    assert (reader.is_ready, reader.position) == (False, 5)
    await fetch(StreamBatch([1, 2], 7, is_last=False))
    assert (reader.is_ready, reader.position) == (True, 5)
    await reader.wait_ready()  # at once: it has something
    assert (reader.take(), reader.position, reader.done.is_set()) == ([1, 2], 7, False)
    await fetch(StreamBatch([], 7, is_last=True))
    assert (reader.take(), reader.done.is_set()) == ([], True)
    assert [call.starting_after for call in owner.calls] == [None, 5, 7]


async def test_a_silent_one_is_asked_again_and_not_waited_for_long(
    autojump_clock: trio.testing.MockClock,
) -> None:
    owner = Owner()
    await owner.get_nothing()
    assert len({call.call_id for call in owner.calls}) == ADOPTION_WAIT_S / CALL_S


async def test_who_dies_with_a_call_in_hand_is_succeeded_in_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    owner = Owner()
    found: list[object] = []

    async def call() -> None:
        found.append(await owner.get())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        owner.handle_epoch(1)  # another frontend came or went
        await trio.testing.wait_all_tasks_blocked()
        assert len(owner.calls) == 1
        owner.handle_epoch(None)
        await trio.sleep(ADOPTION_WAIT_S - 1)
        assert len(owner.calls) == 1, "there is none to ask"
        owner.handle_epoch(2)
        await trio.testing.wait_all_tasks_blocked()
        owner.handle_epoch(3)  # another death, and a spare
        await trio.testing.wait_all_tasks_blocked()
        first, _, third = owner.calls
        assert third == attrs.evolve(first, call_id=third.call_id)
        owner.foreign.handle_reply(reply_to(first, ForeignOutcome.NOT_FOUND))  # too late
        owner.reply(ForeignOutcome.FOUND, '{"id": 1}')
    assert found == [{"id": 1}]


async def test_a_successor_is_not_waited_for_long(autojump_clock: trio.testing.MockClock) -> None:
    owner = Owner()
    owner.handle_epoch(None)
    await owner.get_nothing()


@pytest.mark.parametrize("verb", ForeignVerb)
async def test_what_is_not_found_when_it_is_deleted_again_is_deleted(
    verb: ForeignVerb, autojump_clock: trio.testing.MockClock
) -> None:
    owner = Owner()
    ends: list[object] = []

    async def call() -> None:
        try:
            ends.append(await owner.foreign.call(verb, FOREIGN, "p", kind=JsonObject))
        except ApiError as error:
            ends.append(error.status)

    for lives in (1, 2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            for _ in range(lives - 1):
                await trio.testing.wait_all_tasks_blocked()
                owner.handle_epoch(2)
            await trio.testing.wait_all_tasks_blocked()
            owner.reply(ForeignOutcome.NOT_FOUND)
    assert ends == [404, {} if verb is ForeignVerb.DELETE else 404]


async def test_a_call_that_is_cancelled_leaves_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    owner = Owner()
    for epoch in (1, None):  # while it is asked, and while there is none to ask
        owner.handle_epoch(epoch)
        async with trio.open_nursery() as nursery:
            for _ in range(CALLS_MAX):
                nursery.start_soon(owner.get)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel("its client has left")
    owner.handle_epoch(2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.get)
        await trio.testing.wait_all_tasks_blocked()
        for call in owner.calls[:-1]:
            owner.foreign.handle_reply(reply_to(call, ForeignOutcome.REFUSED))
        owner.reply(ForeignOutcome.FOUND)
    assert trio.current_time() == 0


@pytest.mark.parametrize(
    ("said", "reply_characters_max", "code"),
    [("x" * 5000, 4000, "response_too_large"), ("\ud800", 2**20, "internal_error")],
    ids=["too large a message", "no Unicode"],
)
async def test_an_answer_that_cannot_be_sent_is_a_refusal_and_harms_no_other(
    said: str,
    reply_characters_max: int,
    code: str,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_server() as server, open_client(server.applications[1]) as owner:
        server.reply_characters_max = reply_characters_max
        server.generators[1].script = [Say(said)]
        body = {"input": "hi", "background": True}
        begun = await owner.request("POST", "/v1/responses", body, KEYS["one"])
        await trio.testing.wait_all_tasks_blocked()
        answer = await ask(server, 0, "GET", f"/{begun.json['id']}")
        assert (answer.status, answer.error["code"]) == (500, code)
        assert answer.error["type"] == "server_error"
        assert (await ask(server, 1, "DELETE", f"/{begun.json['id']}")).status == 200
    assert trio.current_time() < CALL_S
    assert len(caplog.records) == (code == "internal_error")


async def test_late_answers_and_those_to_an_earlier_epoch_are_ignored(
    autojump_clock: trio.testing.MockClock,
) -> None:
    owner = Owner()
    foreign, calls = owner.foreign, owner.calls
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.get_nothing)
        await trio.testing.wait_all_tasks_blocked()
        reply = reply_to(calls[0], ForeignOutcome.FOUND, "{}")
        assert (reply.caller, reply.caller_epoch) == (0, 7)
        foreign.handle_reply(attrs.evolve(reply, caller_epoch=6))
        foreign.handle_reply(attrs.evolve(reply, call_id=99))
    foreign.handle_reply(reply)


async def test_calls_beyond_the_bound_wait_for_their_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Readers call again and again: to refuse one would cut off who has read half of a stream."""
    owner = Owner()
    answered = 0

    async def ask() -> None:
        nonlocal answered
        await owner.get()
        answered += 1

    async with trio.open_nursery() as nursery:
        for _ in range(CALLS_MAX + 2):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert len(owner.calls) == CALLS_MAX
        for count in range(CALLS_MAX + 2):
            owner.foreign.handle_reply(reply_to(owner.calls[count], ForeignOutcome.FOUND, "{}"))
            await trio.testing.wait_all_tasks_blocked()
    assert answered == CALLS_MAX + 2
    assert trio.current_time() == 0


async def test_a_call_that_has_no_turn_in_time_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    owner = Owner()
    async with trio.open_nursery() as nursery:
        for _ in range(CALLS_MAX + 1):
            nursery.start_soon(owner.get_nothing)


async def test_an_answer_that_takes_too_long_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    sent: list[object] = []

    async def hang(message: ForeignCall | ForeignReply) -> None:
        sent.append(message)
        await trio.sleep_forever()

    foreign = ForeignStreams(1, 2, 1, hang)
    call = ForeignCall(
        caller=0,
        caller_epoch=1,
        call_id=1,
        frontend=1,
        verb=ForeignVerb.GET,
        response_id=FOREIGN,
        principal=Authentication.of_keys(("one",)).authenticate("Bearer one"),
    )
    await foreign.answer(call, Application(FakeGenerator()).carry_out)
    assert sent == [reply_to(call, ForeignOutcome.NOT_FOUND)]
    assert trio.current_time() == pytest.approx(CALL_S)


@pytest.mark.parametrize(
    ("response_id", "is_foreign"),
    [
        (FOREIGN, True),
        (response_id_of(0, "0" * 32), False),
        (response_id_of(2, "0" * 32), False),  # there is no third
        ("resp_0", False),
    ],
)
def test_what_is_foreign(response_id: str, is_foreign: bool) -> None:
    assert ForeignStreams(0, 2).is_foreign(response_id) is is_foreign
    assert not ForeignStreams().is_foreign(response_id)


STEADY = [Say(str(number), after_s=1) for number in range(9)]
TERMINALS = ("response.completed", "response.incomplete", "response.failed", "error")


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join([event.get("delta", "") for event in events])


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


async def test_all_of_it_outlives_its_frontend_as_a_pause(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_server() as server, open_client(server.applications[1]):
        use(server, STEADY)
        first = await respond(server, 1)
        response_id = await respond(server, 1, background=True)

        async def read() -> None:
            events = list((await ask(server, 0, "GET", f"/{response_id}?stream=true")).events())
            assert text_of(events) == "012345678"

        async def do(method: str, path: str, body: object = None) -> None:
            assert (await ask(server, 0, method, path, body)).status == 200

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.sleep(2.5)
            server.kill(1)
            nursery.start_soon(server.succeed, 1, 5)
            died_at = trio.current_time()
            async with trio.open_nursery() as asking:
                asking.start_soon(do, "GET", f"/{response_id}")
                asking.start_soon(do, "POST", f"/{first}/cancel")
                asking.start_soon(do, "GET", f"/{first}/input_items")
                asking.start_soon(do, "POST", "", {"input": "x", "previous_response_id": first})
            assert trio.current_time() > died_at + 5
        await do("DELETE", f"/{response_id}")


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


async def test_a_refusal_there_is_one_here(
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
