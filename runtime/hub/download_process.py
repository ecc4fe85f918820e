"""Process that downloads one model of the hub, for the program that started it (`fetch`).

The library blocks and cannot be cancelled: it runs in a thread, and the end of the process is the
end of it.
"""

import logging
import warnings

import trio
from huggingface_hub.utils.tqdm import disable_progress_bars

from ...nurseries.processes.child import ChildFds, run_child
from ...nurseries.processes.title import set_title
from ...nurseries.tasks.background import waiting_for
from ...transports.control.channel import ControlChannel
from .download import FetchFailed, HubDownload
from .messages import FROM_DOWNLOAD, TO_DOWNLOAD, FetchOrder, FetchRefused

# A thread that is left behind has nothing to put in order.
EXIT_BOUND_S = 0.2


async def main(fds: ChildFds) -> None:
    """Carry out the order that comes first; what it came to is the last message."""
    set_title("download")
    with ControlChannel(fds.control, sends=FROM_DOWNLOAD, receives=TO_DOWNLOAD) as channel:
        order, _ = await channel.receive()
        assert isinstance(order, FetchOrder)
        download = HubDownload(order, lambda report: trio.from_thread.run(channel.send, report))
        answer: object
        try:
            with waiting_for("the hub"):
                answer = await trio.to_thread.run_sync(download.fetch, abandon_on_cancel=True)
        except FetchFailed as error:
            answer = FetchRefused(error.reason)
        await channel.send(answer)
        with waiting_for("the order to stop"):
            await trio.sleep_forever()


if __name__ == "__main__":
    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # the library's, about a full disk: we look ourselves
    run_child(main, exit_bound_s=EXIT_BOUND_S)
