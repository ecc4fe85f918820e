"""Who the children of a process are, as the kernel lists them: for those whom nobody can ask.

Must not know what the processes do.
"""

from pathlib import Path


def child_pids(pid: int) -> list[int]:
    """The living children of `pid`, by number; [] when it is gone, or another user's."""
    children: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += [int(child) for child in (task / "children").read_text().split()]
    except OSError:
        pass  # it has ended meanwhile
    return sorted(children)
