"""What admins may ask over HTTP."""

import trio

from triolet.api.responses.root_calls import RootCalls
from triolet.runtime.messages import RootCall, RootReply

from ..fakes import make_application, open_client

ADMIN = {"authorization": "Bearer admin"}


async def test_the_tree_is_the_roots() -> None:
    application = make_application(admin_keys=("admin",))
    calls = RootCalls()

    async def send(call: RootCall) -> None:
        await trio.lowlevel.checkpoint()
        calls.handle_reply(RootReply(call.call_id, '{"name":"root"}'))

    calls.send = send
    application.root = calls
    async with open_client(application) as client:
        answer = await client.request("GET", "/admin/tree", headers=ADMIN)
    assert answer.json == {"name": "root"}


async def test_without_a_root_it_is_503_with_retry_after() -> None:
    async with open_client(make_application(admin_keys=("admin",))) as client:
        answer = await client.request("GET", "/admin/tree", headers=ADMIN)
    assert (answer.status, answer.error["code"]) == (503, "root_unreachable")
    assert answer.headers["retry-after"] == "2"
