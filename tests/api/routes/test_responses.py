"""Responses over HTTP beyond one answer: background, reading again, deleting, input items."""

from typing import Any

import pytest
import trio
import trio.testing

from ..fakes import (
    Answer,
    FakeGenerator,
    HttpClient,
    Say,
    make_application,
    open_client,
    open_responses,
)

SLOW = [Say("a"), Say("b", after_s=1000)]
STEADY = [Say(str(number), after_s=1) for number in range(9)]


async def create(client: HttpClient, **values: object) -> dict[str, Any]:
    answer = await client.request("POST", "/v1/responses", {"input": "hi", **values})
    assert answer.status == 200
    response = answer.json
    assert isinstance(response, dict)
    return response


def said(answer: Answer) -> tuple[str, list[int]]:
    events = list(answer.events())
    text = "".join(event.get("delta", "") for event in events)
    return text, [event["sequence_number"] for event in events]


async def test_a_background_response_is_read_while_it_runs_and_afterwards(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_client(make_application(FakeGenerator(STEADY))) as client:
        response = await create(client, background=True)
        assert (response["status"], response["background"]) == ("in_progress", True)
        path = f"/v1/responses/{response['id']}"
        await trio.sleep(4.5)
        seen = [await client.request("GET", f"{path}?stream=true") for _ in range(2)]
        assert trio.current_time() == 9
        assert [said(answer)[0] for answer in seen] == ["012345678"] * 2
        after = await client.request("GET", f"{path}?stream=true&starting_after=32")
        assert said(after) == ("45678", [72, 73, 74, 75, 76])
        whole = await client.request("GET", path)
        assert whole.json["status"] == "completed"
        assert whole.json == list(after.events())[-1]["response"]


async def test_a_cut_stream_is_resumed_without_gap_or_repeat(
    autojump_clock: trio.testing.MockClock,
) -> None:
    application = make_application(FakeGenerator(STEADY))
    body = {"input": "hi", "stream": True, "runtime": {"keep_s": 5}}
    async with open_responses(application):
        async with open_client(application) as client:
            await client.send("POST", "/v1/responses", body)
            await trio.sleep(3.5)
        (running,) = application.responses.store.running()
        await trio.sleep(2)
        path = f"/v1/responses/{running.response_id}?stream=true&starting_after=24"
        async with open_client(application) as other:
            assert (await other.request("HEAD", path)).status == 200
            assert trio.current_time() == 5.5, "a head waits for nothing"
        async with open_client(application) as other:
            text, numbers = said(await other.request("GET", path))
        path = f"/v1/responses/{running.response_id}?stream=true"
        async with open_client(application) as other:
            ids = {"last-event-id": "24"}
            again = await other.request("GET", path, headers=ids)
            behind = await other.request("GET", path + "&starting_after=0", headers=ids)
    assert text == "345678"
    assert numbers == [40, 48, 56, 64, 72, 73, 74, 75, 76]
    assert said(again)[0] == text
    assert said(behind)[0] == text, "a browser that reads on repeats the address that it had"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=yes", "stream"),
        ("stream=true&starting_after=x", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true&starting_after=29", "starting_after"),
        ("stream=true&starting_after=" + "9" * 30, "starting_after"),
    ],
)
async def test_bad_queries_name_the_parameter(query: str, param: str) -> None:
    async with open_client(make_application()) as client:
        response = await create(client)
        answer = await client.request("GET", f"/v1/responses/{response['id']}?{query}")
        assert (answer.status, answer.error["param"]) == (400, param)


async def test_behind_the_end_there_is_nothing_more() -> None:
    async with open_client(make_application()) as client:
        response = await create(client)
        path = f"/v1/responses/{response['id']}?stream=true&starting_after=28"
        answer = await client.request("GET", path)
    assert (answer.status, answer.body) == (200, b"")


async def test_what_is_forgotten_is_not_found(autojump_clock: trio.testing.MockClock) -> None:
    application = make_application()
    async with open_responses(application):
        async with open_client(application) as client:
            response = await create(client)
        await trio.sleep(application.settings.limits.ended_s)
        for query in ("", "?stream=true&starting_after=3"):
            async with open_client(application) as client:
                answer = await client.request("GET", f"/v1/responses/{response['id']}{query}")
            assert (answer.status, answer.error["code"]) == (404, "response_not_found")


async def test_what_is_not_stored_is_forgotten_at_its_end() -> None:
    async with open_client(make_application()) as client:
        response = await create(client, store=False)
        assert response["store"] is False
        answer = await client.request("GET", f"/v1/responses/{response['id']}")
        assert answer.status == 404


async def test_deleting(autojump_clock: trio.testing.MockClock) -> None:
    generator = FakeGenerator(scripts={"slow": SLOW})
    async with open_client(make_application(generator)) as client:
        for body in ({}, {"input": "slow", "background": True}):
            response = await create(client, **body)
            path = f"/v1/responses/{response['id']}"
            deleted = await client.request("DELETE", path)
            assert deleted.json == {"id": response["id"], "object": "response", "deleted": True}
            for method in ("GET", "DELETE"):
                assert (await client.request(method, path)).status == 404
    assert generator.aborted == [response["id"]]


async def test_credit_is_refused_where_none_can_be_granted() -> None:
    async with open_client(make_application()) as client:
        body = {"input": "hi", "runtime": {"credit": 1}}
        answer = await client.request("POST", "/v1/responses", body)
        assert answer.error["param"] == "runtime.credit"


async def test_a_deadline_ends_a_whole_answer(autojump_clock: trio.testing.MockClock) -> None:
    async with open_client(make_application(FakeGenerator(SLOW))) as client:
        response = await create(client, runtime={"deadline_ms": 2000})
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "deadline"}
    assert trio.current_time() == 2


async def test_a_slow_second_reader_does_not_hold_a_whole_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    application = make_application(FakeGenerator([Say("x" * 50_000, after_s=1)] * 9))
    async with open_client(application) as client:
        await client.send("POST", "/v1/responses", {"input": "hi", "runtime": {"keep_s": 1}})
        await trio.sleep(1.5)
        (running,) = application.responses.store.running()
        with running.reading():
            answer = await client.read_answer()
        assert len(answer.json["output"][0]["content"][0]["text"]) == 9 * 50_000


async def test_input_items() -> None:
    async with open_client(make_application()) as client:
        first = await create(client, input="one")
        second = await create(client, input="two", previous_response_id=first["id"])
        path = f"/v1/responses/{second['id']}/input_items"
        pages = {}
        for query in ("", "?order=asc", "?order=asc&limit=2", "?limit=0", "?order=up", "?after=x"):
            pages[query] = await client.request("GET", path + query)
        texts = [item["content"][0]["text"] for item in pages[""].json["data"]]
        assert texts == ["two", "Hello world", "one"]
        assert not pages[""].json["has_more"]
        part = pages["?order=asc&limit=2"].json
        assert (part["has_more"], part["last_id"]) == (
            True,
            pages["?order=asc"].json["data"][1]["id"],
        )
        rest = await client.request("GET", f"{path}?order=asc&after={part['last_id']}")
        assert [item["role"] for item in rest.json["data"]] == ["user"]
        for query, param in (("?limit=0", "limit"), ("?order=up", "order"), ("?after=x", "after")):
            assert pages[query].error["param"] == param
        unknown = await client.request("GET", "/v1/responses/resp_0/input_items")
        assert unknown.status == 404
