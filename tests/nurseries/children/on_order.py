"""A child without trio that obeys words on its control socket; it ends with the death pipe."""

import ctypes
import os
import select
import subprocess
import sys


def act(word: str, control_fd: int) -> None:
    verb, _, argument = word.partition(" ")
    if verb == "exit":
        os._exit(int(argument))
    elif verb == "kill":
        os.kill(os.getpid(), int(argument))
    elif verb == "crash":
        ctypes.string_at(0)
    elif verb == "raise":
        raise ValueError(argument)
    elif verb == "grandchild":
        grandchild = subprocess.Popen(["sleep", "1000"])
        os.write(control_fd, str(grandchild.pid).encode())
    elif verb == "environment":
        os.write(control_fd, os.environ.get(argument, "").encode())
    elif verb == "fds":
        os.write(control_fd, " ".join(os.listdir("/proc/self/fd")).encode())
    elif verb == "print":
        sys.stdout.write(argument)
        sys.stdout.flush()
    elif verb == "leave_group":
        os.setpgid(0, os.getpgid(os.getppid()))
        os.write(control_fd, b"left")


def main(control_fd: int, death_fd: int) -> None:
    os.write(control_fd, b"ready")
    while True:
        readable, _, _ = select.select([control_fd, death_fd], [], [])
        if death_fd in readable:
            os._exit(0)
        act(os.read(control_fd, 256).decode(), control_fd)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
