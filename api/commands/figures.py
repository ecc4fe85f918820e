"""Figures as JSON, to a file or to stdout, by one convention for all commands.

`--json FILE` writes a file, `--json -` writes to stdout and no table is printed. Whether the file
can be written is checked before anything is measured.
"""

import json
import math
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence

from ...engine.errors import InvalidParameter

STDOUT = "-"


def check_target(where: str) -> None:
    """Raises `InvalidParameter` for a file that cannot be written; "" and "-" are in order."""
    if where not in ("", STDOUT):
        check_file("json", where)


def check_file(option: str, where: str) -> None:
    """Raises `InvalidParameter` of this option for a file that cannot be written."""
    path = pathlib.Path(where)
    if path.is_dir():
        raise InvalidParameter(option, f"{where} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise InvalidParameter(option, f"{path.parent} is no folder")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidParameter(option, f"{where} cannot be written")


def write_figures(where: str, figures: Mapping[str, object]) -> None:
    """Write plain values; NaN and infinities become null. Nothing happens for ""."""
    text = json.dumps(_finite(figures), indent=2) + "\n"
    if where == STDOUT:
        sys.stdout.write(text)
    elif where:
        pathlib.Path(where).write_text(text)


def shows_table(where: str) -> bool:
    """Whether stdout is free for a table."""
    return where != STDOUT


def _finite(value: object) -> object:
    match value:
        case Mapping():
            return {str(key): _finite(each) for key, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest rank: the smallest value that at least so many percent do not exceed."""
    rank = math.ceil(percent / 100 * len(ordered))
    return ordered[max(rank, 1) - 1]
