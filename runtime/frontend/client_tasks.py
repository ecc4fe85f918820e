"""Background tasks of the core client: outputs from engines, requests that wait too long, forms of
requests from a journal; and the wait for its engines, or for those of hosts.

Apart from the client, all of whose calls are synchronous: these wait.
"""

import math
from itertools import groupby

import trio

from ...engine.errors import EngineError, InvalidParameter
from ...nurseries.tasks.background import always_waits_for, start_background_task_soon, waiting_for
from ...transports.links.channel import Channel
from ..config import RuntimeSettings
from ..control.calls import EngineState
from ..errors import FormsUnavailable, NoEngine
from ..events import HostsAwaited, OnEvent
from ..forms.form_client import FormChecker
from .core_client import CoreClient
from .ledger_entry import LedgerEntry

# vLLM's slice: about a millisecond of work between two checkpoints.
SLICE_OUTPUTS = 128


async def run_output_handler(
    client: CoreClient,
    channel: Channel,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Background task `output-handler`: receives outputs and delivers them; never returns.

    One task for all engines and requests: it never waits for a client (collectors do not block),
    and works in slices, so that it does not keep the loop from others.
    Cancellation: between slices; outputs that were written down and not yet delivered are with the
    ledger, and their requests end with the frontend.
    """
    always_waits_for("outputs from engines")
    task_status.started()
    done = 0
    while True:
        for event in await channel.receive():
            accepted = client.handle_event(event)
            for start in range(0, len(accepted.tokens), SLICE_OUTPUTS):
                tokens = accepted.tokens[start : start + SLICE_OUTPUTS]
                client.deliver_tokens(tokens)
                done += len(tokens)
                if done >= SLICE_OUTPUTS:
                    await trio.lowlevel.checkpoint()
                    done = 0
            for entry, output in accepted.outputs:
                client.deliver(entry, output)
                done += 1
                if done >= SLICE_OUTPUTS:
                    await trio.lowlevel.checkpoint()
                    done = 0
            if accepted.queued:  # perhaps to move on, of which its client hears after that
                client.place_waiting()


async def run_replay_deadlines(
    client: CoreClient, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Background task `replay-deadlines`: ends requests that no engine took in time; never returns.

    Cancellation: what waits ends with the frontend.
    """
    always_waits_for("requests that wait for an engine too long")
    task_status.started()
    while True:
        with trio.move_on_at(client.ledger.replays.next_deadline()):
            await client.replays_changed.wait()
        client.place_waiting()


async def run_adopted_forms(
    client: CoreClient,
    forms: FormChecker,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Background task `adopted-forms`: checks forms that a journal brought back, before an engine
    gets them; never returns.

    Another version of the library may have accepted them. What an engine goes on with is not sent,
    so it needs no check before it is lost there; nothing without a form waits for this task.
    Cancellation: what waits ends with the frontend.
    """
    task_status.started()
    while True:
        changed, unchecked = client.replays_changed.next, client.ledger.replays.unchecked()
        unchecked.sort(key=_principal)
        async with trio.open_nursery() as nursery:
            for _, entries in groupby(unchecked, key=_principal):
                start_background_task_soon(
                    nursery, _check_again, client, forms, list(entries), name="form-again"
                )
        with waiting_for("forms of a journal to check"):
            await changed.wait()


def _principal(entry: LedgerEntry) -> str:
    return entry.request.principal


async def _check_again(client: CoreClient, forms: FormChecker, entries: list[LedgerEntry]) -> None:
    """Task `form-again`: the forms of one principal, one after the other."""
    for entry in entries:
        form = entry.request.sampling.structured_outputs
        refusal: EngineError | None = None
        assert form is not None, "it waits for a check of it"
        try:
            await forms.check(form, entry.request.principal)
        except (InvalidParameter, FormsUnavailable) as error:
            refusal = error
        if client.ledger.get(entry.request.request_id) is entry:  # its client has not left
            _handle_checked(client, entry, refusal)


def _handle_checked(client: CoreClient, entry: LedgerEntry, refusal: EngineError | None) -> None:
    entry.awaits_check = False
    if refusal is not None:
        client.ledger.handle_give_up(entry, trio.current_time())
        if entry.sink is not None:
            entry.sink.fail(refusal)
    client.place_waiting()
    client.announce_waiting([entry])


async def wait_engines(client: CoreClient, engines: int, link_up_s: float) -> None:
    """Wait until all engines can take work, or at least one can and the others were given up.

    Those of hosts are not waited for, unless there are no others: then for one of them. Booting has
    its own deadlines. Raises `NoEngine` if engines are ready but their links do not come up within
    `link_up_s`.
    """
    with waiting_for("the engines to be ready"):
        while True:
            health, members = client.engines.health(), client.engines.membership.engines
            own = [engine.state for engine in health if not engine.host]
            failed = own.count(EngineState.FAILED)
            takes = any(engine.state is EngineState.READY for engine in health)
            if takes and own.count(EngineState.READY) + failed == engines:
                return
            booted = [each for each in members if each.state is EngineState.READY]
            links_due = sum(not each.host for each in booted) + failed == engines
            with trio.move_on_after(link_up_s if links_due and booted else math.inf) as patience:
                await client.engines_changed.wait()
            if patience.cancelled_caught:
                raise NoEngine(f"engines are ready, but not linked after {link_up_s:g} s")


async def wait_taking(client: CoreClient, settings: RuntimeSettings, on_event: OnEvent) -> None:
    """Wait for the engines, or, of a head that has none, for one of a host. Raises `NoEngine`."""
    hosts, link_up_s = settings.hosts, settings.times.link_up_s
    if settings.engines:
        await wait_engines(client, settings.engines, link_up_s)
        return
    on_event(HostsAwaited(hosts.join_address))
    with trio.move_on_after(hosts.first_host_s) as patience:
        await wait_engines(client, 0, link_up_s)
    if patience.cancelled_caught:
        reason = f"no engine of a host has come within {hosts.first_host_s:g} s"
        if hosts.join_address:
            reason += f": start one with triolet engine --join {hosts.join_address} --key FILE"
        raise NoEngine(reason)
