"""Calls to a running server over its control socket: its task tree, restarts, drains of hosts.

In a rolling restart engines and frontends begin anew, one after the other. The command leads, not
the root, which only carries out one restart at a time as it always does. So who ends the command,
by Ctrl-C or with its terminal, ends the rolling behind the place that is under way, which comes
back by itself; nothing of it is left that could go on unseen.
"""

from collections.abc import Awaitable, Callable

import attrs
import msgspec
import trio

from ...engine.errors import InvalidParameter
from ...nurseries.tasks.task_tree import ProcessTree, render_tree
from ...runtime.control.calls import (
    ControlCall,
    EngineState,
    Place,
    PlaceState,
    RestartedPlace,
    Role,
    ServerPlaces,
)
from ...runtime.control.client import ask_run
from ...runtime.control.run_folder import find_run

# A question to the root.
Ask = Callable[[ControlCall, Place | None], Awaitable[str]]
# How often the root is asked; a restart takes some tenths of a second at least.
LOOK_S = 0.1


@attrs.frozen
class NotBack(Exception):
    """A place did not come back when it was restarted; those behind it were not restarted."""

    place: Place
    reason: str

    def __str__(self) -> str:
        return f"{self.place} did not come back, and no other is restarted: {self.reason}"


async def tree_text(run: str | None, *, as_json: bool) -> str:
    """The task tree of this run, or of the only one, asked over its control socket.

    Raises `RunNotFound`, `ControlCallFailed`.
    """
    text = await ask_run(find_run(run), ControlCall.TREE)
    if as_json:
        return text
    return "\n".join(render_tree(msgspec.json.decode(text, type=ProcessTree)))


async def restart_text(run: str | None, engine: int | None, frontend: int | None) -> str:
    """Restart as ordered, over the control socket; what was restarted, a line each.

    Raises `InvalidParameter`, `RunNotFound`, `ControlCallFailed`, `ControlCallRefused`.
    """
    if engine is not None and frontend is not None:
        raise InvalidParameter("frontend", "and --engine exclude each other")
    place = None if engine is None else Place(Role.ENGINE, engine)
    place = place if frontend is None else Place(Role.FRONTEND, frontend)
    text = await ask_run(find_run(run), ControlCall.RESTART, place)
    restarted = msgspec.json.decode(text, type=dict[str, list[RestartedPlace]])["restarted"]
    return "\n".join(f"{each.place} was {each.was}, and is restarted" for each in restarted)


async def drain_text(run: str | None, host: str) -> str:
    """Drain a host; what becomes of it.

    Raises `RunNotFound`, `ControlCallFailed`, `ControlCallRefused`.
    """
    await ask_run(find_run(run), ControlCall.DRAIN, host=host)
    return f"host {host} drains, and ends"


async def reload_text(run: str | None) -> str:
    """Have the keys of hosts read again; what became of hosts.

    Raises `RunNotFound`, `ControlCallFailed`, `ControlCallRefused`.
    """
    text = await ask_run(find_run(run), ControlCall.RELOAD)
    refused = msgspec.json.decode(text, type=list[str])
    return "\n".join(["keys were read", *(f"host {name} is refused" for name in refused)])


async def restart_rolling(ask: Ask, say: Callable[[str], None]) -> None:
    """Restart every place, each when the one before is ready and linked; `say` gets the progress.

    `ask` puts a question to the root. Raises `NotBack`, and what `ask` raises. Cancellation: the
    place that was ordered last comes back by itself.
    """
    places = await _look(ask)
    for each in places.places:
        await _restart(ask, each.place, places.restart_s, say)


async def _restart(ask: Ask, place: Place, within_s: float, say: Callable[[str], None]) -> None:
    before = _of(place, await _look(ask))
    began_s = trio.current_time()
    await ask(ControlCall.RESTART, place)
    say(f"{place} is restarted")
    with trio.move_on_after(within_s):
        while True:
            await trio.sleep(LOOK_S)
            places = await _look(ask)
            now = _of(place, places)
            if now.state is EngineState.FAILED:
                raise NotBack(place, now.reason)
            is_back = now.state is EngineState.READY and now.epoch > before.epoch
            # A frontend without an engine could only refuse, an engine without frontends idles.
            if is_back and places.is_linked:
                say(f"{place} is ready after {trio.current_time() - began_s:.1f} s")
                return
    raise NotBack(place, f"it was not ready, and linked to the others, within {within_s:g} s")


async def _look(ask: Ask) -> ServerPlaces:
    return msgspec.json.decode(await ask(ControlCall.PLACES, None), type=ServerPlaces)


def _of(place: Place, places: ServerPlaces) -> PlaceState:
    return next(each for each in places.places if each.place == place)
