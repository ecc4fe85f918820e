"""API reference of the Python interface, made from signatures and docstrings.

python -m tests.docs.api_page > docs/api.md
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import attrs

import triolet
from triolet.engine import errors as engine_errors
from triolet.engine.errors import EngineError
from triolet.engine.request_options import RequestOptions
from triolet.runtime import errors as runtime_errors
from triolet.runtime.arguments import EngineArguments, RuntimeArguments
from triolet.runtime.frontend.generation import GenerationStream, Generator
from triolet.runtime.llm import Completion
from triolet.runtime.text.outputs import GenerationChoice, GenerationOutput, Logprobs, Usage

OPENING = """\
# Python interface

Made from the docstrings (`python -m tests.docs.api_page`); a test holds the two together. Names of
the first section are imported from `triolet`; how they are used: [Embedding](embedding.md).
"""
# What calls return.
RESULTS = (
    GenerationStream,
    GenerationOutput,
    Completion,
    GenerationChoice,
    Usage,
    Logprobs,
)
# Methods of a stream that other rooms call, not programs.
FOR_ROOMS = {"expire", "facts", "has_end", "listen", "take_nowait"}
# Of a table's cell.
BAR = "\\|"
MODULES_OF_ERRORS = (engine_errors, runtime_errors)


def _text(documented: object) -> str:
    return inspect.getdoc(documented) or ""


def _written(documented: Any) -> ast.stmt:
    """How it stands in its file, where types have the names that people know."""
    return ast.parse(textwrap.dedent(inspect.getsource(documented))).body[0]


def _signature(name: str, function: Callable[..., Any]) -> str:
    """Parameters a line each, without `self`, and what is returned."""
    written = _written(function)
    assert isinstance(written, ast.FunctionDef | ast.AsyncFunctionDef)
    words = "await " if isinstance(written, ast.AsyncFunctionDef) else ""
    if isinstance(written, ast.AsyncFunctionDef) and written.decorator_list:
        words = "async with "
    arguments = written.args
    arguments.args = [each for each in arguments.args if each.arg not in ("self", "cls")]
    lines = "".join(f"\n    {each}," for each in _split(ast.unparse(arguments)))
    returned = f" -> {ast.unparse(written.returns)}" if written.returns else ""
    return f"```\n{words}{name}({lines}{chr(10) if lines else ''}){returned}\n```\n"


def _split(arguments: str) -> Iterator[str]:
    """Arguments one by one, at commas outside of brackets."""
    depth = begin = 0
    for place, letter in enumerate(arguments):
        depth += (letter in "[(") - (letter in ")]")
        if letter == "," and not depth:
            yield arguments[begin:place].strip()
            begin = place + 1
    if arguments:
        yield arguments[begin:].strip()


def _methods(owner: type) -> Iterator[str]:
    """Methods and properties for callers; of a message, those that make one and what it tells."""
    is_runtime = owner is triolet.Runtime
    for name in dir(object.__new__(owner)) if is_runtime else vars(owner):
        member = inspect.getattr_static(owner, name, None)
        promised = getattr(Generator, name, None) if is_runtime else None
        text = _text(promised or member)
        if name.startswith("_") or name in FOR_ROOMS or not text:
            continue
        if isinstance(member, property):
            yield f"**`.{name}`**: {text}\n"
        elif isinstance(member, classmethod):
            yield f"{_signature(f'{owner.__name__}.{name}', member.__func__)}\n{text}\n"
        elif inspect.isfunction(member) and not _is_message(owner):
            yield f"{_signature(f'.{name}', member)}\n{text}\n"


def _is_message(owner: type) -> bool:
    return attrs.has(owner) and owner not in (triolet.Runtime, GenerationStream)


def _fields(owner: type) -> str:
    """A table of a message's fields and their types, those that it inherits first."""
    rows = []
    for each in reversed(owner.__mro__):
        if each.__module__ in ("builtins", "typing"):
            continue
        written = _written(each)
        assert isinstance(written, ast.ClassDef)
        for field in written.body:
            if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
                annotation = ast.unparse(field.annotation).replace("|", BAR)
                rows.append(f"| `{ast.unparse(field.target)}` | `{annotation}` |")
    return "\n".join(["| field | type |", "|---|---|", *rows, ""])


def _entry(name: str, documented: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if not isinstance(documented, type):
        yield f"{_signature(name, documented)}\n{_text(documented)}\n"
        return
    if documented is triolet.LLM:
        yield _signature(name, documented.__init__)
    yield f"{_text(documented)}\n"
    if _is_message(documented):
        yield _fields(documented)
    yield from _methods(documented)


def _options() -> Iterator[str]:
    yield "## Options of a request\n"
    yield "Keywords of `generate`; the text there says what they mean.\n"
    yield _fields(RequestOptions)
    yield "## Options\n"
    yield "Keywords of `open_runtime` and `LLM`; see `triolet config show` for what they mean.\n"
    for owner in (RuntimeArguments, EngineArguments):
        yield f"{_text(owner)}\n"
        yield _fields(owner)


def _errors(module: ModuleType) -> Iterator[str]:
    for name, each in vars(module).items():
        is_own = isinstance(each, type) and each.__module__ == module.__name__
        if is_own and issubclass(each, EngineError):
            yield f"| `{name}` | `{each.code}` | {' '.join(_text(each).split())} |"


def page() -> str:
    """The whole page, in Markdown."""
    parts = [OPENING, "## Names of `triolet`\n"]
    for name in triolet.__all__:
        parts += _entry(name, getattr(triolet, name))
    parts.append("## What calls return\n")
    for each in RESULTS:
        parts += _entry(each.__name__, each)
    parts += _options()
    parts.append("## Errors\n")
    parts.append("All are an `EngineError`; `code` is what the HTTP interface answers.\n")
    for module in MODULES_OF_ERRORS:
        rows = "\n".join(_errors(module))
        parts.append(f"`{module.__name__}`:\n\n| error | code | when |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
