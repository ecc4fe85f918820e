"""Background task of the frontend that receives outputs from engines and delivers them to requests.

One task for all engines and requests: it must never wait for a client (collectors never block) nor
keep the loop from others (it works in slices). What one request's processing raises fails that
request alone.
"""

import trio

from ...nurseries.tasks.waiting import always_waits_for
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
    """Background task `output-handler`; never returns unless cancelled.

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
