"""Patches: what a fuzzer tries is handed its surroundings, and nothing of it is overwritten."""

import ast
from collections.abc import Iterator, Set

from .house import Module, house_modules

# What sets an attribute of something that it imports, and why it may. None is needed to run.
PATCHES = {
    "triolet.fuzz.simulator.bugs.replaced": "breaks the product, which is what it is for",
    "triolet.fuzz.simulator.task_order.seeded_tasks": "trio takes neither chance nor order from us",
    "triolet.fuzz.simulator.task_order.start_clock": "of the run whose clock it is, and no other",
}
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def patched_attributes(module: Module) -> Iterator[tuple[str, str]]:
    """Functions, each with what it sets that belongs to a module, or to a class of another one."""
    imports = (node for node in module.nodes if isinstance(node, ast.Import | ast.ImportFrom))
    foreign = {each.asname or each.name.split(".")[0] for node in imports for each in node.names}
    for function in module.nodes:
        if not isinstance(function, FunctionNode):
            continue
        body = list(ast.walk(function))
        for node in body:  # another name for it: `module = trio._core._run`
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.Attribute() as value)
                ):
                    foreign |= {name} if _is_foreign(value, foreign) else set()
        for node in body:
            if _sets_foreign(node, foreign):
                yield function.name, ast.unparse(node)


def _is_foreign(node: ast.AST | None, foreign: Set[str]) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in foreign


def _sets_foreign(node: ast.AST, foreign: Set[str]) -> bool:
    match node:
        case ast.Attribute(ctx=ast.Store() | ast.Del()):
            return _is_foreign(node, foreign)
        case ast.Call(func=ast.Name(id="setattr" | "delattr")):
            return True
        case ast.Subscript(ctx=ast.Store() | ast.Del(), value=ast.Call(func=ast.Name(id="vars"))):
            return True
    return False


def test_fuzzers_overwrite_nothing_of_what_they_try() -> None:
    fuzz = (module for module in house_modules() if module.room == "fuzz")
    found = {f"{m.name}.{function}" for m in fuzz for function, _ in patched_attributes(m)}
    assert found == PATCHES.keys()
