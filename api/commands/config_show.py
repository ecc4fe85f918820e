"""`triolet config show` and `triolet serve --help-all`: every setting of a server, with words.

Reading only: nothing is started and no value is checked against another.
"""

import io
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import attrs
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from .options import FLAT, MODEL_HELP

DEFAULT = "default"
# Width of a table that goes to no terminal.
_COLUMNS = 160


@attrs.frozen
class SettingRow:
    """Setting as `config show` shows it."""

    option: str
    value: object
    source: str
    unit: str = ""
    help: str = ""


def settings_text(
    groups: tuple[Any, ...], model: str | None, sources: Mapping[str, str], *, as_json: bool
) -> str:
    """Table or JSON of all settings of these options. `sources`: of those that were set."""
    source = sources.get("--model", DEFAULT)
    rows = [SettingRow("MODEL", model or "(the bundled model)", source, "", MODEL_HELP)]
    for group in groups:
        rows += rows_of(group, sources)
    if as_json:
        return json.dumps([attrs.asdict(row) for row in rows], indent=2, ensure_ascii=False)
    titles = ("setting", "value", "source", "meaning")
    cells = [(row.option, _value_text(row), row.source, row.help) for row in rows]
    return _table_text(titles, cells, [row.source != DEFAULT for row in rows])


def help_text(groups: tuple[Any, ...]) -> str:
    """Table of the options of these classes: name, default and meaning."""
    rows = [row for group in groups for row in rows_of(group, {})]
    cells = [(row.option, _value_text(row), row.help) for row in rows]
    return _table_text(("option", DEFAULT, "meaning"), cells, [False] * len(rows))


def _table_text(
    titles: tuple[str, ...], rows: Sequence[tuple[str, ...]], are_bold: Sequence[bool]
) -> str:
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    for cells, is_bold in zip(rows, are_bold, strict=True):
        table.add_row(*cells, style="bold" if is_bold else None)
    text = io.StringIO()
    width = shutil.get_terminal_size((_COLUMNS, 0)).columns
    Console(file=text, width=width, markup=False).print(table)
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
    return "bytes" if "bytes_" in name else ""


def rows_of(settings: Any, sources: Mapping[str, str], prefix: str = "--") -> Iterator[SettingRow]:
    """Every option of an options class, nested ones by dotted names, in order of reading."""
    values = attrs.asdict(settings, recurse=False)
    for field in attrs.fields(type(settings)):
        value = values[field.name]
        note = _note(field)
        name = prefix + ("".join(note.name or ()) or field.name.replace("_", "-"))
        if attrs.has(type(value)):
            is_flat = FLAT in get_args(field.type)
            yield from rows_of(value, sources, prefix if is_flat else f"{name}.")
        else:
            hidden = "(set, not shown)" if value else value
            source = sources.get(name, DEFAULT)
            shown = value if field.repr else hidden
            yield SettingRow(name, shown, source, _unit(field.name), note.help or "")


def _note(field: "attrs.Attribute[Any]") -> Parameter:
    """The name and words that its annotation gives."""
    notes = [note for note in get_args(field.type) if isinstance(note, Parameter)]
    return Parameter.combine(*notes)
