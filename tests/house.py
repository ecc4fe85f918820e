"""What the house tests read: every module of the package, its tree and its imports.

Reads source text only; imports nothing of the house, so that a broken module is still judged.
"""

import ast
import functools
import gc
import pathlib
from collections.abc import Iterable, Iterator, Sequence

import attrs

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLOORS = ("nurseries", "transports", "engine", "runtime", "api", "fuzz", "bench", "tools")


@attrs.frozen
class Import:
    """One import of one module: `target` is absolute (`triolet.engine.config`, `torch.nn`)."""

    target: str
    line: int
    type_only: bool


@attrs.frozen
class Module:
    """One source file. `name` is dotted, `triolet` first; tests are `tests.…`."""

    name: str
    path: pathlib.Path
    source: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.tree) or ""

    @property
    def room(self) -> str:
        """The floor this module is on: `engine` for `triolet.engine.core.request`."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else "__init__"

    @property
    def sans_io(self) -> bool:
        return "Sans-IO:" in self.docstring

    @functools.cached_property
    def nodes(self) -> Sequence[ast.AST]:
        """All of the tree, walked once for everybody."""
        return list(ast.walk(self.tree))

    @functools.cached_property
    def imports(self) -> Sequence[Import]:
        """In the order of their lines."""
        return list(_imports(self, self.tree, type_only=False))


def statements_of(node: ast.AST) -> Iterator[ast.AST]:
    """The statements, handlers and cases right below a node: imports and blocks are nowhere else.

    Most of a tree is expressions; who needs none of them saves nine tenths of a walk.
    """
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        children = vars(node).get(field)
        if isinstance(children, list):
            yield from children


def _imports(module: Module, node: ast.AST, *, type_only: bool) -> Iterator[Import]:
    for child in statements_of(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, type_only)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(module, child)
            for alias in child.names:
                yield Import(f"{base}.{alias.name}", child.lineno, type_only)
        guarded = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield from _imports(module, child, type_only=type_only or guarded)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module.name.split(".")
    if not module.is_package:
        parts = parts[:-1]
    parts = parts[: len(parts) - (node.level - 1)]
    return ".".join(parts + ([node.module] if node.module else []))


@functools.cache
def house_modules() -> tuple[Module, ...]:
    """All modules of the package: root files and the rooms, never tests or caches."""
    paths = [ROOT / "__init__.py", ROOT / "__main__.py", ROOT / "command_line.py"]
    for floor in FLOORS:
        paths += sorted((ROOT / floor).rglob("*.py"))
    return _modules([path for path in paths if path.exists()], "triolet")


def modules_below(root: pathlib.Path, folder: str) -> tuple[Module, ...]:
    """All modules of a folder of some checkout."""
    return _modules(sorted((root / folder).rglob("*.py")), "triolet", root)


@functools.cache
def modules_of_tests() -> tuple[Module, ...]:
    """All files below tests/."""
    return _modules(sorted((ROOT / "tests").rglob("*.py")), "")


def _modules(
    paths: Iterable[pathlib.Path], prefix: str, root: pathlib.Path = ROOT
) -> tuple[Module, ...]:
    """Parse files; the garbage collector would walk all their trees again and again, for 80 %."""
    gc.disable()
    try:
        return tuple(_module(path, prefix, root) for path in paths)
    finally:
        gc.freeze()
        gc.enable()


def _module(path: pathlib.Path, prefix: str, root: pathlib.Path) -> Module:
    parts = [*([prefix] if prefix else []), *path.relative_to(root).with_suffix("").parts]
    if parts[-1] == "__init__":
        parts = parts[:-1]
    source = path.read_text()
    return Module(".".join(parts), path, source, ast.parse(source))


@functools.cache
def _house_names() -> frozenset[str]:
    return frozenset(module.name for module in house_modules())


def house_target(target: str) -> str | None:
    """The house module that an import names (`triolet.engine.config.X` is the module config)."""
    parts = target.split(".")
    while parts:
        if ".".join(parts) in _house_names():
            return ".".join(parts)
        parts.pop()
    return None
