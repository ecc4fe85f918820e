"""Inputs with references, and inputs that are too long: what the model is given."""

from typing import Any

import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.responses_request import ResponseRequest
from triolet.api.responses.inputs import RESPONSES_MAX
from triolet.api.responses.response import Response
from triolet.api.responses.service import ResponseService
from triolet.runtime.text.prompts import ChatPrompt

from ..fakes import FakeGenerator, make_application, open_responses
from ..records import answered, make_request


async def answer(service: ResponseService, request: ResponseRequest, principal: str) -> Response:
    async with answered(service, request, principal) as response:
        return response


async def test_references_are_items_of_kept_responses_of_the_same_principal() -> None:
    application = make_application()
    async with open_responses(application):
        service = application.responses
        first = await answer(service, make_request(), "p")
        whole: Any = first.whole()
        (item,) = whole["output"]
        short = {"id": item["id"]}
        asked = [{"role": "user", "content": "a"}, short, {"type": "item_reference", **short}]
        request = make_request(input=asked)
        second = await answer(service, request, "p")
        said = [message["content"] for message in second.conversation.messages]
        assert said == ["a", "Hello world", "Hello world"]
        assert await service.count_input_tokens(request, "p") == len("".join(said))
        many = [{"id": f"msg_{number:034x}"} for number in range(RESPONSES_MAX + 1)]
        refused = ((asked, "q", 404), ([{"id": "msg_x"}], "p", 404), (many, "p", 400))
        for bad, principal, status in refused:
            with pytest.raises(ApiError) as caught:
                await answer(service, make_request(input=bad), principal)
            assert (caught.value.status, caught.value.param) == (status, "input")


@pytest.mark.parametrize(
    ("characters", "max_tokens", "kept"),
    [(20, None, 6), (30, None, 4), (30, 1, 5), (50, 50, 2), (200, None, 1)],
)
async def test_the_oldest_turns_of_an_input_that_is_too_long_are_dropped(
    characters: int, max_tokens: int | None, kept: int
) -> None:
    generator = FakeGenerator()  # a token for each character; 128 of them
    application = make_application(generator)
    turn = [{"role": role, "content": "x" * (characters // 2)} for role in ("user", "assistant")]
    asked = [{"role": "system", "content": "s"}, *turn * 5, {"role": "user", "content": "last"}]
    more: dict[str, Any] = {"truncation": "auto", "max_output_tokens": max_tokens}
    async with open_responses(application):
        response = await answer(application.responses, make_request(input=asked, **more), "p")
    prompt = generator.calls[0].prompt
    assert isinstance(prompt, ChatPrompt)
    users = [message for message in prompt.messages if message["role"] == "user"]
    assert len(users) == kept
    assert [message["role"] for message in prompt.messages[:2]] == ["system", "user"]
    assert prompt.messages[-1]["content"] == "last"
    assert len(response.conversation.messages) == len(asked), "what goes on is all of it"
    assert response.whole()["truncation"] == "auto"
