"""What the house tests read: every module of the package, its tree and its imports.

Reads source text only; imports nothing of the house, so that a broken module is still judged.
"""

import ast
import functools
import pathlib

import attrs

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLOORS = ("nurseries", "transports", "engine", "runtime", "api", "fuzz")


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

    def imports(self) -> list[Import]:
        found: list[Import] = []
        _collect(self, self.tree, found, type_only=False)
        return found


def _collect(module: Module, node: ast.AST, found: list[Import], *, type_only: bool) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            found += [Import(alias.name, child.lineno, type_only) for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(module, child)
            found += [Import(f"{base}.{a.name}", child.lineno, type_only) for a in child.names]
        guarded = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        _collect(module, child, found, type_only=type_only or guarded)


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
    paths = [ROOT / "__init__.py", ROOT / "__main__.py"]
    for floor in FLOORS:
        paths += sorted((ROOT / floor).rglob("*.py"))
    return tuple(_module(path, "triolet") for path in paths if path.exists())


@functools.cache
def modules_of_tests() -> tuple[Module, ...]:
    """All files below tests/."""
    return tuple(_module(path, "") for path in sorted((ROOT / "tests").rglob("*.py")))


def _module(path: pathlib.Path, prefix: str) -> Module:
    parts = [*([prefix] if prefix else []), *path.relative_to(ROOT).with_suffix("").parts]
    if parts[-1] == "__init__":
        parts = parts[:-1]
    source = path.read_text()
    return Module(".".join(parts), path, source, ast.parse(source))


def house_target(target: str) -> str | None:
    """The house module that an import names (`triolet.engine.config.X` is the module config)."""
    names = {module.name for module in house_modules()}
    parts = target.split(".")
    while parts:
        if ".".join(parts) in names:
            return ".".join(parts)
        parts.pop()
    return None
