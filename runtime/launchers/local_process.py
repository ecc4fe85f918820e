"""Process of a host that is a child of its head, on the same machine: see `local`.

A root of engines as any host is; but its plan comes with INIT, and its end by the death pipe.
"""

import msgspec

from ...nurseries.processes.child import ChildFds, run_child
from ...nurseries.processes.heap import settle_heap
from ...nurseries.processes.orphans import become_subreaper, run_reaper
from ...nurseries.processes.progress_page import open_slot, passes_shown
from ...nurseries.processes.title import set_title
from ...nurseries.tasks.service import open_service
from ...transports.control.channel import ControlChannel
from ...transports.control.handshake import perform_child_handshake
from ...transports.control.passed_fds import close_fds
from ..hosts.host_plan import HostPlan
from ..hosts.host_process import Host
from .local import LOCAL_TO_ROOT, ROOT_TO_LOCAL


async def main(child: ChildFds) -> None:
    """Be a host until a stop is ordered. Events of its engines are told to its head alone."""
    control = ControlChannel(child.control, sends=LOCAL_TO_ROOT, receives=ROOT_TO_LOCAL)
    handshake = await perform_child_handshake(control, "host")
    plan = msgspec.msgpack.decode(handshake.init, type=HostPlan)
    set_title(f"host {plan.name}")
    host = Host(plan, lambda event: None)
    become_subreaper()  # workers of an engine that died are ours to reap
    try:
        with open_slot(handshake.fds[0], 0) as progress, passes_shown(progress):
            settle_heap()
            await handshake.ready(b"")
            async with open_service(run_reaper, lambda: host.to_reap(), name="reaper"):
                await host.run()
                while host.is_leaving:  # drained by its head, which wants it all the same
                    host = Host(plan, lambda event: None)
                    await host.run()
    finally:
        close_fds(handshake.fds)


if __name__ == "__main__":
    run_child(main)
