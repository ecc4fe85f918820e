"""`triolet tree`: the live task tree of a running server, as text or JSON.

Asks over the run folder's control socket, not the public port. Must not know how the tree is
gathered.
"""

import msgspec

from ...nurseries.tasks.task_tree import ProcessTree, render_tree
from ...runtime.messages import ControlCall
from ...runtime.processes.control_server import ask_run
from ...runtime.processes.run_folder import find_run


async def tree_text(run_id: str | None, *, as_json: bool) -> str:
    """The tree of this run, or of the only one. Raises `RunNotFound`, `ControlCallFailed`."""
    text = await ask_run(find_run(run_id), ControlCall.TREE)
    if as_json:
        return text
    return "\n".join(render_tree(msgspec.json.decode(text, type=ProcessTree)))
