"""What admins may ask of the root: the tree, and places that begin anew."""

from typing import Any

import attrs
import pytest
import trio

from triolet.api.responses.foreign import RootCalls
from triolet.runtime.messages import ControlCall, Place, Role, RootCall, RootReply

from ..fakes import make_application, open_client

ADMIN = {"authorization": "Bearer admin"}
REFUSAL = "there is no engine 7: this server has engine 0 alone"


@attrs.define(eq=False)
class FakeRoot:
    """Answers as a root does, and notes what it was asked."""

    asked: list[RootCall] = attrs.field(factory=list)
    calls: RootCalls = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.calls = RootCalls(self.send)

    async def send(self, call: RootCall) -> None:
        await trio.lowlevel.checkpoint()
        self.asked.append(call)
        refusal = REFUSAL if call.place == Place(Role.ENGINE, 7) else ""
        text = "" if refusal else f'{{"call":"{call.call}"}}'
        self.calls.handle_reply(RootReply(call.call_id, text, refusal))


async def ask(root: FakeRoot | None, method: str, path: str, body: Any = None) -> Any:
    application = make_application(admin_keys=("admin",))
    if root is not None:
        application.root = root.calls
    async with open_client(application) as client:
        return await client.request(method, path, body, headers=ADMIN)


async def test_the_tree_is_the_roots() -> None:
    assert (await ask(FakeRoot(), "GET", "/admin/tree")).json == {"call": "tree"}


async def test_without_a_root_it_is_503_with_retry_after() -> None:
    answer = await ask(None, "GET", "/admin/tree")
    assert (answer.status, answer.error["code"]) == (503, "root_unreachable")
    assert answer.headers["retry-after"] == "2"


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, None),
        ({"engine": 1}, Place(Role.ENGINE, 1)),
        ({"frontend": 0, "engine": None}, Place(Role.FRONTEND, 0)),
    ],
)
async def test_a_place_begins_anew(body: dict[str, Any], place: Place | None) -> None:
    root = FakeRoot()
    answer = await ask(root, "POST", "/admin/restart", body)
    assert (answer.status, answer.json) == (202, {"call": "restart"})
    assert root.asked == [RootCall(1, ControlCall.RESTART, place)]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"engine": 7}, 404, REFUSAL),
        ({"engine": 1, "frontend": 1}, 400, "send either it or `engine`"),
        ({"engine": "all"}, 400, "must be an integer"),
    ],
)
async def test_what_cannot_be_done_is_said(body: Any, status: int, message: str) -> None:
    answer = await ask(FakeRoot(), "POST", "/admin/restart", body)
    assert answer.status == status
    assert message in answer.error["message"]
