"""HTTP routes for admins alone: what commands ask a running server on its own machine.

They exist only where an admin key is set. Must not know how the root gathers what it tells.
"""

from ...runtime.messages import ControlCall
from ..application import Application
from ..http.connection import HttpConnection
from ..http.request import JSON_TYPE

Parameters = dict[str, str]


async def get_tree(
    connection: HttpConnection, application: Application, _: str, __: Parameters
) -> None:
    """`GET /admin/tree`: the live task tree of all processes, as `triolet tree --json` shows it."""
    text = await application.root.ask(ControlCall.TREE)
    await connection.answer(200, text.encode(), content_type=JSON_TYPE)
