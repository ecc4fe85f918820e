"""Runs real functions one statement at a time, so that a test decides how two threads interleave.

The source of a function becomes a generator with a step before each statement. Where the original
would wait (for a poll, or a readable descriptor) the generator gives out what for, and is told the
answer. What it calls runs whole: only the functions that are given here are taken apart.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Generator
from typing import Any

# What a step gives out: None, or ("poll", timeout), or ("readable", descriptor).
Wanted = tuple[str, Any] | None
Steps = Generator[Wanted, Any, Any]


class _Taker(ast.NodeTransformer):
    """Puts a step before each statement, and makes a step of each wait."""

    def _stepped(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [part for statement in body for part in (_step(), statement)]

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body:
                setattr(node, field, self._stepped(body))
        return node

    def visit_Await(self, node: ast.Await) -> ast.expr:
        call = node.value
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Attribute)
        if call.func.attr == "checkpoint":
            return ast.Yield()
        assert call.func.attr == "wait_readable", call.func.attr
        return _wait("readable", call.args[0])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "poll":
            return _wait("poll", node.args[0])
        return node


def _step() -> ast.stmt:
    return ast.Expr(ast.Yield())


def _wait(kind: str, argument: ast.expr) -> ast.expr:
    return ast.Yield(ast.Tuple([ast.Constant(kind), argument], ast.Load()))


def taken_apart(function: Callable[..., object], **replaced: object) -> Callable[..., Steps]:
    """`function`, plain or async, as a generator function; `replaced` are globals it sees."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    for argument in ast.walk(definition.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    plain = ast.FunctionDef(
        name=definition.name, args=definition.args, body=definition.body, decorator_list=[]
    )
    tree.body = [_Taker().generic_visit(plain)]  # type: ignore[list-item]  # it stays a statement
    ast.fix_missing_locations(tree)
    space: dict[str, Any] = {**function.__globals__, **replaced}
    code = compile(tree, f"<{definition.name}, taken apart>", "exec")
    exec(code, space)  # noqa: S102 (our own source)
    made: Callable[..., Steps] = space[definition.name]
    return made
