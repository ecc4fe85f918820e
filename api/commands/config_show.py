"""`triolet config show`: every setting of a server, its value, and its source.

Reading only: nothing is started and no value is checked against another.
"""

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import attrs
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from .options import FLAT

DEFAULT = "default"

# Wide enough that no row is folded; a terminal folds by itself.
_COLUMNS = 160


@attrs.frozen
class SettingRow:
    """One setting as `config show` shows it."""

    option: str
    value: object
    source: str
    unit: str = ""


def settings_text(
    groups: tuple[Any, ...], model: str | None, sources: Mapping[str, str], *, as_json: bool
) -> str:
    """All settings of these options, as a table or as JSON. `sources`: of those that were set."""
    source = sources.get("--model", DEFAULT)
    rows = [SettingRow("MODEL", model or "(the bundled model)", source)]
    for group in groups:
        rows += rows_of(group, sources)
    if as_json:
        return json.dumps([attrs.asdict(row) for row in rows], indent=2, ensure_ascii=False)
    table = Table(box=None, pad_edge=False)
    for title in ("setting", "value", "source"):
        table.add_column(title, overflow="fold")
    for row in rows:
        style = None if row.source == DEFAULT else "bold"
        table.add_row(row.option, _value_text(row), row.source, style=style)
    text = io.StringIO()
    Console(file=text, width=_COLUMNS, markup=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _value_text(row: SettingRow) -> str:
    value = row.value
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "(none)"
    return f"{value} {row.unit}".rstrip() if value != "" else "(empty)"


def _unit(name: str) -> str:
    """By the end of a setting's name, which options leave out."""
    if name.endswith("_per_s"):
        return "a second"
    if name.endswith("_s"):
        return "s"
    if name.endswith("_ms"):
        return "ms"
    return "bytes" if "_bytes" in name else ""


def rows_of(settings: Any, sources: Mapping[str, str], prefix: str = "--") -> Iterator[SettingRow]:
    """Every option of an options class, nested ones by dotted names, in order of reading."""
    values = attrs.asdict(settings, recurse=False)
    for field in attrs.fields(type(settings)):
        value = values[field.name]
        name = prefix + _option_name(field)
        if attrs.has(type(value)):
            is_flat = FLAT in get_args(field.type)
            yield from rows_of(value, sources, prefix if is_flat else f"{name}.")
        else:
            hidden = "(set, not shown)" if value else value
            source = sources.get(name, DEFAULT)
            yield SettingRow(name, value if field.repr else hidden, source, _unit(field.name))


def _option_name(field: "attrs.Attribute[Any]") -> str:
    """The name that its annotation gives, else its own."""
    for note in get_args(field.type):
        if isinstance(note, Parameter) and note.name:
            (name,) = note.name
            return str(name)
    return field.name.replace("_", "-")
