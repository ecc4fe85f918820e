"""Life of streamed completions above their connections: kept, read again, and ended."""

from typing import Any

import pytest
import trio
import trio.testing

from triolet.api.application import Application
from triolet.engine.messages import FinishReason

from ..chunks import frames_of, said_of
from ..fakes import Fail, FakeGenerator, Say, make_application, open_client, open_responses

CHAT_PATH, PATH = "/v1/chat/completions", "/v1/completions"
STEADY = [Say(str(number), after_s=1) for number in range(9)]
KEPT = {"stream": True, "runtime": {"keep_s": 5}}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT_PATH, {"messages": [{"role": "user", "content": "hi"}], **KEPT}),
    (PATH, {"prompt": "hi", **KEPT}),
    (PATH, {"prompt": ["hi", "ho"], "n": 2, "echo": True, **KEPT}),
]


def known(application: Application) -> list[str]:
    """Ids of those that run or are kept."""
    store = application.completions.store
    store.ended.forget_old(trio.current_time())
    return [*store._running, *store._awaited, *(name for name, _ in store.ended.items())]


async def begin(application: Application, path: str, body: dict[str, Any], after_s: float) -> str:
    """One whose client leaves after so long; its id."""
    async with open_client(application) as client:
        await client.send("POST", path, body)
        await trio.sleep(after_s)
    (completion_id,) = known(application)
    return completion_id


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_a_kept_stream_is_read_again_and_then_forgotten(
    path: str, body: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    generator = FakeGenerator(STEADY)
    application = make_application(generator)
    async with open_responses(application):
        completion_id = await begin(application, path, body, 3.5)
        await trio.sleep(2)
        stream = f"{path}/{completion_id}/stream"
        async with open_client(application) as client:
            assert (await client.request("HEAD", stream)).status == 200
            assert trio.current_time() == 5.5, "a head waits for nothing"
            answer = await client.request("GET", stream)
            whole = list(frames_of(answer.body))
            ids = [number for number, _ in whole]
            assert ids[-1] == "done"
            assert (await client.request("GET", stream)).status == 404
        assert not generator.active
        assert not generator.aborted
        count = len(ids[0].split("."))
        behind = ".".join(["3"] * count)
        for query, headers in ((f"?starting_after={behind}", {}), ("", {"last-event-id": behind})):
            again = await begin(application, path, body, 3.5)
            stream = f"{path}/{again}/stream{query}"
            async with open_client(application) as client:
                answer = await client.request("GET", stream, headers=headers)
            choices, others = said_of(list(frames_of(answer.body)))
            assert others == ["[DONE]"]
            assert [choices[index]["text"] for index in range(count)] == ["345678"] * count


async def test_without_keeping_the_client_that_leaves_ends_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    generator = FakeGenerator(STEADY)
    application = make_application(generator)
    path, body = BODIES[0]
    async with open_responses(application):
        async with open_client(application) as client:
            await client.send("POST", path, {**body, "runtime": {}})
            await trio.sleep(2.5)
        await trio.testing.wait_all_tasks_blocked()
        assert len(generator.aborted) == 1
        assert not known(application)


async def test_one_that_is_not_read_is_forgotten_after_its_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for script, is_aborted in ((STEADY, False), ([Say("a"), Say("b", after_s=99)], True)):
        generator = FakeGenerator(script)
        application = make_application(generator)
        async with open_responses(application):
            await begin(application, *BODIES[0], 6.5)
            await trio.sleep(4.5)
            assert known(application)
            assert application.completions.store.active == is_aborted
            await trio.sleep(1)
            assert not known(application)
            assert bool(generator.aborted) == is_aborted


@pytest.mark.parametrize(
    ("query", "header", "status", "param"),
    [
        ("?starting_after=3.1", None, 400, "starting_after"),
        ("?starting_after=99", None, 400, "starting_after"),
        ("?starting_after=done", None, 400, "starting_after"),
        ("", "x" * 300, 400, "starting_after"),
    ],
)
async def test_bad_ids_name_the_parameter(
    query: str,
    header: str | None,
    status: int,
    param: str,
    autojump_clock: trio.testing.MockClock,
) -> None:
    application = make_application(FakeGenerator(STEADY))
    async with open_responses(application):
        completion_id = await begin(application, *BODIES[0], 3.5)
        async with open_client(application) as client:
            headers = {} if header is None else {"last-event-id": header}
            stream = f"{CHAT_PATH}/{completion_id}/stream{query}"
            answer = await client.request("GET", stream, headers=headers)
        assert (answer.status, answer.error["param"]) == (status, param)


async def test_anothers_stream_does_not_exist(autojump_clock: trio.testing.MockClock) -> None:
    application = make_application(FakeGenerator(STEADY), api_keys=("one", "two"))
    keys = [{"authorization": f"Bearer {key}"} for key in ("one", "two")]
    path, body = BODIES[0]
    async with open_responses(application):
        async with open_client(application) as client:
            await client.send("POST", path, body, headers=keys[0])
            await trio.sleep(2.5)
        (completion_id,) = known(application)
        async with open_client(application) as client:
            stream = f"{path}/{completion_id}/stream"
            answer = await client.request("GET", stream, headers=keys[1])
            assert (answer.status, answer.error["code"]) == (404, "completion_not_found")
            other = f"{PATH}/{completion_id}/stream"
            assert (await client.request("GET", other, headers=keys[0])).status == 404
            assert (await client.request("GET", stream, headers=keys[0])).status == 200


@pytest.mark.parametrize(
    "script", [[*STEADY[:4], Fail(RuntimeError("a mistake"), after_s=1)], STEADY[:4]]
)
async def test_a_failure_is_read_again_as_well(
    script: list[Say | Fail], autojump_clock: trio.testing.MockClock
) -> None:
    generator = FakeGenerator(script, finish_reason=FinishReason.ERROR)
    application = make_application(generator)
    async with open_responses(application):
        completion_id = await begin(application, *BODIES[0], 2.5)
        await trio.sleep(4)
        async with open_client(application) as client:
            answer = await client.request("GET", f"{CHAT_PATH}/{completion_id}/stream")
        assert b'"error"' in answer.body.strip().split(b"\n\n")[-1]
        assert not generator.active


@pytest.mark.parametrize("runtime", [{"keep_s": 61}, {"keep_s": -1}])
async def test_how_long_it_may_be_kept(runtime: dict[str, Any]) -> None:
    path, body = BODIES[0]
    async with open_client(make_application()) as client:
        answer = await client.request("POST", path, {**body, "runtime": runtime})
        assert (answer.status, answer.error["param"]) == (400, "runtime.keep_s")
        body = {**body, "stream": False}
        answer = await client.request("POST", path, body)
        assert (answer.status, answer.error["param"]) == (400, "runtime.keep_s")
