"""Sources of option values: command line, environment, settings file, default.

The parser asks these in that order, and each fills only what those before it left open. A settings
file is TOML with one table for each command (`[serve]`, `[run]`) whose keys are the options' names;
unknown keys are refused, so that a misspelt one cannot pass unnoticed.

The parser's own conversion is lenient: `8124.5` would be port 8124, and a number, a string and a
boolean of a settings file are all one to it. So what was written is checked before that.
"""

import difflib
import math
import os
import pathlib
import re
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin

import attrs
from cyclopts import (
    UNSET,
    App,
    Argument,
    ArgumentCollection,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnknownOptionError,
    UnusedCliTokensError,
)
from cyclopts.config import Dict, Env

from ...nurseries.processes.spawned import PASS_VARIABLE

PREFIX = "TRIOLET_"
FILE_OPTION = "--config"
# Variables that are no options: what children inherit.
PROCESS_VARIABLES = (PASS_VARIABLE,)
# Which table is read for which command.
TABLES = {
    ("serve",): "serve",
    ("config", "show"): "serve",
    ("run",): "run",
    ("batch",): "batch",
    ("bench",): "bench",
}
_FILE_BYTES_MAX = 2**20  # a file of settings has some kilobytes; a larger one is a mistake
_WHOLE = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
# Integers that cross to other processes have 64 bits, and so at most so many digits.
_INTEGER_MAX = 2**63 - 1
_DIGITS_MAX = 24
_TYPE_NAMES = {
    bool: "true or false",
    int: "a whole number of at most 64 bits",
    float: "a finite number",
    str: "text",
}


def environment() -> Env:
    """`--max-model-len` is `TRIOLET_MAX_MODEL_LEN`, whatever the command."""
    return Env(PREFIX, command=False, show=False)


def unknown_variables(environ: Iterable[str], options: Iterable[str]) -> Iterator[str]:
    """A sentence for each variable with our prefix that is none of these options'.

    Options are written as `--max-model-len`.
    """
    known = [PREFIX + re.sub(r"[-.]", "_", name.lstrip("-")).upper() for name in options]
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in {*known, *PROCESS_VARIABLES}:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield f"{name!a} in the environment is not a setting of this command{hint}"


def settings_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill in what the file that `--config` names says. Raises `CycloptsError`."""
    path = _named_file(arguments)
    if path is None:
        return
    tables = _read(path)
    for name, value in tables.items():
        if name not in TABLES.values():
            known = ", ".join(f"[{table}]" for table in dict.fromkeys(TABLES.values()))
            is_table = isinstance(value, dict)
            fault = (
                f"[{name}] is not a table of settings"
                if is_table
                else f"{name} is outside of any table"
            )
            raise CycloptsError(msg=f"{path}: {fault}; there are {known}")
    table = TABLES.get(commands) or TABLES[commands[:1]]  # a sub-command has that of its command
    _check_file(path, table, tables.get(table, {}), arguments)
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


def _check_file(path: pathlib.Path, name: str, table: Any, arguments: ArgumentCollection) -> None:
    """Check tables and types; the parser sees values as text alone, and no number for a table."""
    for argument in arguments:
        keys = argument.name.removeprefix("--").split(".")
        value = table
        for key in keys:
            value = _lookup(value, key)
        if argument.children:
            if not isinstance(value, dict | None):
                raise CycloptsError(msg=f"{path}: {'.'.join(keys)} must be a table")
        elif value is not None and (fault := fault_of_value(argument.hint, value)):
            keyword = "".join(f"[{key}]" for key in (name, *keys))
            raise CycloptsError(msg=f"{path}: {keyword} {fault}")


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


def default_text(value: object) -> str | None:
    """A default as help shows it; what is off, or nothing, is not shown."""
    return None if value is None or value is False or value in ("", ()) else str(value)


# Rules of every option: of one that is given twice the last counts, as scripts that append expect.
# No option negates but one that is on by default, and none empties a list.
EVERY_OPTION = Parameter(
    allow_repeating=True, negative_bool=(), negative_iterable=(), show_default=default_text
)


@attrs.define(eq=False)
class Sources:
    """Notes, asked last, what set which option; an option that is not in it has its default.

    `unknown` has a sentence for each of our variables that set none.
    """

    of_option: dict[str, str] = attrs.field(factory=dict, init=False)
    unknown: list[str] = attrs.field(factory=list, init=False)

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Called by the parser, once for each command line."""
        self.of_option.clear()
        names = [name for argument in arguments for name in argument.names]
        self.unknown = list(unknown_variables(os.environ, names))
        for argument in arguments:
            if argument.tokens:
                token = argument.tokens[0]
                self.of_option[argument.name] = {
                    "cli": "command line",
                    "env": f"environment, {token.keyword}",
                }.get(token.source, f"{token.source}, {token.keyword}")


# The sources of this program's command line.
SOURCES = Sources()


def parser_sentence(error: CycloptsError) -> str:
    """Sentence for the parser's error, in the look that all errors have."""
    error.verbose = False
    match error:
        case UnusedCliTokensError(unused_tokens=[*words]):
            return f"unexpected: {' '.join(words)}"
        case UnknownOptionError(token=token) if token.source not in ("cli", "env"):
            *tables, name = re.findall(r"\[([^\]]*)\]", token.keyword or "") or ["?"]
            names = [name for each in error.argument_collection for name in each.names]
            near = difflib.get_close_matches(f"--{'.'.join([*tables[1:], name])}", names, n=1)
            hint = f". Did you mean {near[0].removeprefix('--')}?" if near else ""
            return f"{token.source}: [{'.'.join(tables)}] has no setting {name}{hint}"
        case MissingArgumentError(argument=Argument() as argument):
            return f"{error.keyword or argument.name} needs a value"
    text = str(error)
    return text[:1].lower() + text[1:].removesuffix(".")


def fault_of_text(hint: Any, text: str) -> str:
    """End of a sentence on what is wrong with `text` for an option of this type; "" if nothing is.

    Of the command line, or the environment. Booleans are read by the parser, which knows their
    words and takes no other.
    """
    kind = _kind(hint)
    if get_origin(kind) is Literal:
        words = ", ".join(filter(None, get_args(kind)))
        return "" if text in get_args(kind) else f"must be one of {words}, not {text!r}"
    is_right = {int: _is_whole, float: _is_number}.get(kind, lambda _: True)(text)
    return "" if is_right else f"must be {_TYPE_NAMES[kind]}, not {text!r}"


def fault_of_value(hint: Any, value: object) -> str:
    """The same of a value that has a type already; text, which may be a secret, is not quoted."""
    kind = _kind(hint)
    if get_origin(kind) is Literal:
        return fault_of_text(hint, str(value))
    values = value if get_origin(hint) is tuple and isinstance(value, list) else [value]
    for each in values if kind in _TYPE_NAMES else ():
        is_right = type(each) is kind or (kind is float and type(each) is int)
        if not is_right or fault_of_text(kind, str(each)):
            return f"must be {_TYPE_NAMES[kind]}" + ("" if kind is str else f", not {each!r}")
    return ""


def _is_whole(text: str) -> bool:
    is_number = len(text) <= _DIGITS_MAX and _WHOLE.fullmatch(text) is not None
    return is_number and abs(int(text)) <= _INTEGER_MAX


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _kind(hint: Any) -> Any:
    """Type of an optional value that is given, or of each of many."""
    kinds = [each for each in get_args(hint) if each not in (type(None), Ellipsis)]
    return kinds[0] if len(kinds) == 1 else hint
