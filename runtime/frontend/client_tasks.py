"""Background tasks of the core client: outputs from engines, and requests that wait too long.

Apart from the client, all of whose calls are synchronous: these two wait.
"""

import trio

from ...nurseries.tasks.background import always_waits_for
from ...transports.links.channel import Channel
from .core_client import CoreClient

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
