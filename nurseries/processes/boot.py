"""Runs a child module with its death notice armed before anything of the child is imported.

    python -m triolet.nurseries.processes.boot MODULE CONTROL_FD DEATH_FD WORDS_FD [AHEAD_MODULE …]

A module that imports a tensor library needs seconds before its first line of code. If its parent
dies meanwhile, or the import itself fails, there must be a death notice and last words already.
Imports next to nothing itself. Must not know what the modules do; most end in `run_child`.
"""

import faulthandler
import runpy
import sys
import traceback

from .death_signal import arm_death_signal
from .heap import relax_collector
from .last_words import write_last_words


def boot(module: str, fds: list[str], ahead: list[str]) -> None:
    """Arm, then run `module` as the main program with `fds` as its arguments.

    The modules `ahead` are started before, as children of this process; behind the fds come
    what they have become (`Spawned.encode`).

    Faults of the interpreter are written to the last words, and so is an error that the module
    raises; it is raised again.
    """
    control_fd, _, words_fd = map(int, fds)
    arm_death_signal(control_fd)
    faulthandler.enable(file=words_fd, all_threads=True)
    relax_collector()
    try:
        started = []
        if ahead:
            from .spawned import spawn

            started = [spawn(each).encode() for each in ahead]
        sys.argv = [module, *fds, *started]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except BaseException as error:
        # The first line is what the parent tells others of this death.
        headline = traceback.format_exception_only(error)[-1]
        write_last_words(words_fd, f"{headline}\n{traceback.format_exc()}")
        raise


if __name__ == "__main__":
    boot(sys.argv[1], sys.argv[2:5], sys.argv[5:])
