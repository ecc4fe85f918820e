"""Title of this process, as `ps` and `top` show it: `triolet: engine 0`.

The title takes the place of the command line, with all keys that stand there.
"""

import os

PREFIX = "triolet: "


def set_title(name: str) -> None:
    """Have this process called so; a title that is longer than the command line is cut."""
    # Else the library takes the place of the environment as well, which `/proc` then lacks.
    os.environ.setdefault("SPT_NOENV", "1")
    from setproctitle import setproctitle

    setproctitle(f"{PREFIX}{name}")
