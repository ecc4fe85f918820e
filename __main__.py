"""Entry point of the `triolet` program: until a command runs, Ctrl-C just ends it.

Importing the commands takes half a second. A KeyboardInterrupt in there would be a traceback out of
some import; with the system's own action there is nothing to clean up and nothing to say. Python's
handler is back when the command has something to end in order (`api.commands.exits`).
"""

import signal


def main() -> None:
    """Run the command that the program's arguments say."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .command_line import run_words

    run_words(None)


if __name__ == "__main__":
    main()
