"""`triolet config show`: every setting of a server, its value, and who set it.

Reading only: nothing is started and no value is checked against another. Must not know how values
are found; `sources` does.
"""

import io
from typing import Any

import attrs
import msgspec
from rich.console import Console
from rich.table import Table

from .sources import DEFAULT, Shown, Sources, shown

# Wide enough that no row is folded; a terminal folds by itself.
_COLUMNS = 160


def settings_text(
    groups: tuple[Any, ...], model: str | None, sources: Sources, *, as_json: bool
) -> str:
    """All settings of the options classes in `groups`, as a table or as JSON."""
    source = sources.of_option.get("--model", DEFAULT)
    rows = [Shown("MODEL", model or "(the bundled model)", source)]
    for group in groups:
        rows += shown(group, sources)
    if as_json:
        return msgspec.json.format(
            msgspec.json.encode([attrs.asdict(row) for row in rows])
        ).decode()
    table = Table(box=None, pad_edge=False)
    for title in ("setting", "value", "source"):
        table.add_column(title, overflow="fold")
    for row in rows:
        style = None if row.source == DEFAULT else "bold"
        table.add_row(row.option, _value_text(row.value), row.source, style=style)
    text = io.StringIO()
    Console(file=text, width=_COLUMNS, markup=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _value_text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "(none)"
    return str(value) if value != "" else "(empty)"
