"""Routes for admins: the live task tree, and processes that begin anew.

The root answers, as it answers the commands `triolet tree` and `triolet restart`.
"""

from ...runtime.messages import ControlCall, Place, Role
from ..application import Call
from ..errors import bad_field
from ..http.request import JSON_TYPE
from ..schema.fields import IntegerKind
from ..schema.tables import Body, Field

RESTART = Body(
    {
        "engine": Field(IntegerKind(), "Rank of the engine that is to begin anew."),
        "frontend": Field(IntegerKind(), "The same of a frontend; it serves out first."),
    }
)


async def get_tree(call: Call) -> None:
    """`GET /admin/tree`: the live task tree of all processes, as `triolet tree --json` shows it."""
    text = await call.application.root.ask(ControlCall.TREE)
    await call.connection.answer(200, text.encode(), content_type=JSON_TYPE)


async def restart(call: Call) -> None:
    """`POST /admin/restart`: an engine or a frontend begins anew; without one, all given up do.

    Raises `ApiError` 404 when there is none.
    """
    ranks = RESTART.read(await call.connection.read_json())
    if len(ranks) > 1:
        raise bad_field("frontend", "send either it or `engine`")
    place = next((Place(Role(role), rank) for role, rank in ranks.items()), None)
    text = await call.application.root.ask(ControlCall.RESTART, place)
    await call.connection.answer(202, text.encode(), content_type=JSON_TYPE)
