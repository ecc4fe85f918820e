"""A child whose C code keeps the interpreter lock for good: no Python of it ever runs again."""

import ctypes

from triolet.nurseries.processes.child import ChildFds, run_child


async def main(fds: ChildFds) -> None:
    fds.control.send(b"ready")
    while True:
        ctypes.PyDLL(None).pause()  # PyDLL, unlike CDLL, does not give the lock away


if __name__ == "__main__":
    run_child(main)
