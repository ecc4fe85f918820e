"""Entry point of the `triolet` program: until a command runs, Ctrl-C just ends it.

Importing the commands takes half a second. A KeyboardInterrupt in there would be a traceback out of
some import; with the system's own action there is nothing to clean up and nothing to say. Python's
handler is back when the command has something to end in order (`api.commands.exits`).
"""

import os
import signal
import sys


def main() -> None:
    """Run the command that the program's arguments say."""
    open_standard_files()
    hide_keys()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .nurseries.processes.heap import pause_collector, settle_modules

    pause_collector()
    from .command_line import run_words

    settle_modules()
    run_words(None)


KEY_OPTIONS = ("--api-key", "--admin-key")


def hide_keys() -> None:
    """Put a title over a command line that has keys, which every user of the machine can read.

    Before the commands are imported, as that takes seconds; the words were read already.
    """
    if any(word.partition("=")[0] in KEY_OPTIONS for word in sys.argv):
        from .nurseries.processes.title import set_title

        set_title("starting")
        print(
            "triolet: warning: other users may have read the key on the command line;"
            " set TRIOLET_API_KEY or TRIOLET_ADMIN_KEY, or name a file by --api-key-file",
            file=sys.stderr,
        )


def open_standard_files() -> None:
    """Open `/dev/null` in the place of a standard file that was closed (`2>&-`).

    Its number would else be that of the next socket or memory that is opened, into which whatever
    prints, logs or inherits would write.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the least number that is free
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


if __name__ == "__main__":
    main()
