"""Where the value of an option comes from: command line, environment, settings file, default.

The parser asks these in that order, and each fills only what those before it left open. A settings
file is TOML with one table for each command (`[serve]`, `[run]`) whose keys are the options' names;
what it does not know is refused, so that a misspelt key cannot pass unnoticed. Must not know what
any option means.
"""

import pathlib
import tomllib
from collections.abc import Iterator
from typing import Any, get_args

import attrs
from cyclopts import UNSET, App, ArgumentCollection, CycloptsError, Parameter
from cyclopts.config import Dict, Env

from .option_types import fault_of_text, fault_of_value

PREFIX = "TRIOLET_"
FILE_OPTION = "--config"
DEFAULT = "default"
# Which table is read for which command.
TABLES = {("serve",): "serve", ("config", "show"): "serve", ("run",): "run", ("bench",): "bench"}
_FILE_BYTES_MAX = 2**20  # a file of settings has some kilobytes; a larger one is a mistake


def environment() -> Env:
    """`--max-model-len` is `TRIOLET_MAX_MODEL_LEN`, whatever the command."""
    return Env(PREFIX, command=False, show=False)


def settings_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill in what the file that `--config` names says. Raises `CycloptsError`."""
    path = _named_file(arguments)
    if path is None:
        return
    tables = _read(path)
    for name in tables:
        if name not in TABLES.values():
            known = ", ".join(f"[{table}]" for table in dict.fromkeys(TABLES.values()))
            raise CycloptsError(msg=f"{path}: [{name}] is no table of settings; there are {known}")
    table = TABLES.get(commands) or TABLES[commands[:1]]  # a sub-command has that of its command
    _check_tables(path, tables.get(table, {}), arguments)
    _check_types(path, table, tables.get(table, {}), arguments)
    fill = Dict(data=tables, source=str(path), root_keys=(table,), use_commands_as_keys=False)
    fill(app, commands, arguments)


def check_written(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Check the types of all that was written, wherever it was. Raises `CycloptsError`."""
    for argument in arguments:
        for token in argument.tokens:
            fault = fault_of_text(argument.hint, token.value)
            if fault and token.implicit_value is UNSET and not argument.children:
                source = {"cli": "", "env": "environment: "}.get(token.source, f"{token.source}: ")
                raise CycloptsError(msg=f"{source}{token.keyword or argument.name} {fault}")


def _check_types(path: pathlib.Path, name: str, table: Any, arguments: ArgumentCollection) -> None:
    """The parser sees values as text alone."""
    for argument in arguments:
        keys = argument.name.removeprefix("--").split(".")
        value = table
        for key in keys:
            value = _lookup(value, key)
        fault = "" if value is None else fault_of_value(argument.hint, value)
        if fault and not argument.children:
            keyword = "".join(f"[{key}]" for key in (name, *keys))
            raise CycloptsError(msg=f"{path}: {keyword} {fault}")


def _check_tables(path: pathlib.Path, table: Any, arguments: ArgumentCollection) -> None:
    """What has options below it must be a table: the parser would let a number pass unseen."""
    for argument in arguments:
        node = table
        for key in argument.name.removeprefix("--").split("."):
            node = _lookup(node, key)
        if argument.children and not isinstance(node, dict | None):
            raise CycloptsError(msg=f"{path}: {argument.name.removeprefix('--')} must be a table")


def _lookup(node: Any, key: str) -> Any:
    """The value under `key`, however its words are joined; None if there is none."""
    if not isinstance(node, dict):
        return None
    return node.get(key, node.get(key.replace("-", "_")))


def _named_file(arguments: ArgumentCollection) -> pathlib.Path | None:
    for argument in arguments:
        if FILE_OPTION in argument.names and argument.tokens:
            return pathlib.Path(argument.tokens[0].value).expanduser()
    return None


def _read(path: pathlib.Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CycloptsError(msg=f"{FILE_OPTION}: cannot read {path}: {reason}") from error
    if len(content) > _FILE_BYTES_MAX:
        raise CycloptsError(msg=f"{FILE_OPTION}: {path} is larger than {_FILE_BYTES_MAX} bytes")
    try:
        tables = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CycloptsError(msg=f"{FILE_OPTION}: {path} is not TOML: {error}") from error
    return tables


@attrs.define(eq=False)
class Sources:
    """Notes, asked last, who set what. {option: source}; what is not in it has its default."""

    of_option: dict[str, str] = attrs.field(factory=dict, init=False)

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Called by the parser, once for each command line."""
        self.of_option.clear()
        for argument in arguments:
            if argument.tokens:
                token = argument.tokens[0]
                self.of_option[argument.name] = {
                    "cli": "command line",
                    "env": f"environment, {token.keyword}",
                }.get(token.source, f"{token.source}, {token.keyword}")


@attrs.frozen
class Shown:
    """One setting as `config show` shows it."""

    option: str
    value: object
    source: str


def shown(settings: Any, sources: Sources, prefix: str = "--") -> Iterator[Shown]:
    """Every option of an options class, nested ones by dotted names, in order of reading."""
    values = attrs.asdict(settings, recurse=False)
    for field in attrs.fields(type(settings)):
        value = values[field.name]
        name = prefix + _option_name(field)
        if attrs.has(type(value)):
            yield from shown(value, sources, f"{name}.")
        else:
            hidden = "(set, not shown)" if value else value
            source = sources.of_option.get(name, DEFAULT)
            yield Shown(name, value if field.repr else hidden, source)


def _option_name(field: "attrs.Attribute[Any]") -> str:
    """The name that its annotation gives, else its own."""
    for note in get_args(field.type):
        if isinstance(note, Parameter) and note.name:
            (name,) = note.name
            return str(name)
    return field.name.replace("_", "-")
