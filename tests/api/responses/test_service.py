"""Starting and reading responses: conversations that go on, refusals, what is left behind."""

import itertools
from typing import Any

import pytest
import trio
import trio.testing

from triolet.api.application import Application
from triolet.api.errors import ApiError
from triolet.api.openai.tool_use import IGNORED_KINDS_MAX, IgnoredTools
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.errors import NoEngine
from triolet.runtime.text.prompts import ChatPrompt

from ...checkpoints import cancel_at_nth_checkpoint
from ..fakes import FakeGenerator, Say, make_application, open_responses
from ..records import answered, make_request, open_response, taken

SLOW = [Say("a"), Say("b", after_s=1000)]


async def respond(application: Application, session: str = "", **values: Any) -> str:
    """The id of a response that has ended."""
    request = make_request(**values)
    async with open_response(application, request, "p", session=session) as response:
        await response.wait_ended()
    return response.response_id


async def test_it_ends_with_the_block_that_held_it(autojump_clock: trio.testing.MockClock) -> None:
    generator = FakeGenerator(SLOW)
    application = make_application(generator)
    async with open_responses(application):
        async with open_response(application, make_request(), "p") as response:
            assert application.responses.store.running() == [response]
        await response.wait_ended()
        assert response.whole()["status"] == "cancelled"
    assert trio.current_time() == 0
    assert generator.aborted == [response.response_id]


async def test_a_conversation_goes_on_and_forks() -> None:
    generator = FakeGenerator()
    application = make_application(generator)
    async with open_responses(application):
        first = await respond(application, input="one", instructions="Be brief")
        for more in ("two", "three"):
            await respond(application, input=more, previous_response_id=first)
    for call, more in zip(generator.calls[1:], ("two", "three"), strict=True):
        assert isinstance(call.prompt, ChatPrompt)
        assert [message["content"] for message in call.prompt.messages] == [
            "one",
            "Hello world",
            more,
        ]


async def test_a_prewarmed_conversation_goes_on_with_nothing_new() -> None:
    generator = FakeGenerator()
    application = make_application(generator)
    async with open_responses(application):
        first = await respond(application, input="one", generate=False)
        await respond(application, input=[], previous_response_id=first)
    prompts = [call.prompt for call in generator.calls]
    assert prompts[0] == prompts[1] == ChatPrompt([{"role": "user", "content": "one"}])


async def test_what_is_not_stored_goes_on_in_its_session_alone() -> None:
    application, session = make_application(), "session_1"
    async with open_responses(application):
        first = await respond(application, session, store=False)
        await respond(application, session, previous_response_id=first)
        for other in ("", "session_2"):
            with pytest.raises(ApiError) as caught:
                await respond(application, other, previous_response_id=first)
            assert caught.value.code == "previous_response_not_found"


async def test_what_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    generator = FakeGenerator(SLOW)
    application = make_application(generator, resume_keep_s=5.0)
    async with open_responses(application):
        async with open_response(application, make_request(), "p") as running:
            await check_refused(
                application,
                {"previous_response_id": running.response_id},
                ("response_in_progress", "previous_response_id"),
            )
        await check_refused(
            application,
            {"previous_response_id": "resp_x"},
            ("previous_response_not_found", "previous_response_id"),
        )
        await check_refused(
            application, {"runtime": {"keep_s": 6}}, ("invalid_parameter", "runtime.keep_s")
        )
        generator.refuse = NoEngine()
        await check_refused(application, {}, ("no_engine", None))
        await running.wait_ended()
        assert application.responses.store.active == 0


async def check_refused(
    application: Application, values: dict[str, Any], expected: tuple[str, str | None]
) -> None:
    with pytest.raises(ApiError) as caught:
        await respond(application, **values)
    assert (caught.value.code, caught.value.param) == expected


async def test_another_principal_cannot_go_on_or_read() -> None:
    application = make_application()
    async with open_responses(application):
        first = await respond(application)
        request = make_request(previous_response_id=first)
        with pytest.raises(ApiError, match="not found"):
            async with open_response(application, request, "other"):
                raise AssertionError
        with pytest.raises(ApiError, match="Response with id"):
            async with application.responses.read(first, "other", None):
                raise AssertionError


async def test_a_caller_that_is_cancelled_anywhere_leaves_nothing() -> None:
    generator = FakeGenerator()
    application = make_application(generator)

    async def read_all() -> None:
        async with open_response(application, make_request(), "p") as response:
            with response.reading() as reader:
                while not reader.done.is_set():
                    await reader.wait_ready()
                    taken(reader, 1)

    async def check() -> None:
        await trio.testing.wait_all_tasks_blocked()
        assert (application.responses.store.active, generator.active) == (0, {})

    async with open_responses(application):
        for n in itertools.count(1):
            was_reached = await cancel_at_nth_checkpoint(read_all, n)
            await check()
            if not was_reached:
                break
        assert n >= 5


async def test_a_drain_waits_for_what_runs_and_then_cuts_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    application = make_application(FakeGenerator([Say("a"), Say("b", after_s=5)]))
    cut = make_application(FakeGenerator(SLOW))
    for one, status in ((application, "completed"), (cut, "cancelled")):
        async with open_responses(one):
            async with open_response(one, make_request(background=True), "p") as response:
                pass
            await one.drain(10)
            assert response.record.snapshot()["status"] == status
    assert trio.current_time() < 20


async def test_ignored_tools_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    application = make_application()
    request = make_request(tools=[{"type": "mcp"}])
    async with open_responses(application):
        for _ in range(2):
            async with answered(application.responses, request, "p"):
                pass
    assert caplog.text.count("tools of the type mcp are ignored") == 1


def test_of_many_kinds_of_ignored_tools_some_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """Clients name them as they like."""
    ignored = IgnoredTools()
    for place in range(3 * IGNORED_KINDS_MAX):
        ignored.note([f"kind{place}", f"other{place}"])
    assert len(ignored.kinds) == len(caplog.records) == IGNORED_KINDS_MAX


async def test_the_object_has_the_values_that_were_used_and_its_end() -> None:
    generator = FakeGenerator(sampling_defaults=SamplingParams(temperature=0.7))
    application = make_application(generator)
    running = answered(application.responses, make_request(top_p=0.5), "p")
    async with open_responses(application), running as response:
        whole: Any = response.whole()
    assert (whole["temperature"], whole["top_p"]) == (0.7, 0.5)
    assert (whole["presence_penalty"], whole["frequency_penalty"]) == (0.0, 0.0)
    assert whole["completed_at"] >= whole["created_at"] > 0
