"""Style as a test: the limits of STYLE by the number, held from the first commit."""

import ast
from collections.abc import Iterator

import pytest

from .house import ROOT, Module, house_modules, house_target, modules_of_tests

FILE_LINES_MAX = 400
TEST_FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
LINE_CHARACTERS_MAX = 100
POSITIONAL_MAX = 4
NESTING_MAX = 4

# The firewalls: the only places that may catch any Exception, each for the reason given.
FIREWALLS = {
    "triolet.nurseries.supervisor": "a supervisor's work is failures",
    "triolet.nurseries.child": "last words of a child that fails",
    "triolet.runtime.llm": "an error crosses to the thread that asked, and is raised there",
    "triolet.api.connection": "a bad connection fails alone",
    "triolet.api.websocket": "a bad lane fails alone",
    "triolet.runtime.core_client": "one request's text must not end everybody's",
    "triolet.engine.worker.process": "a step's failure is reported with its traceback",
    "triolet.engine.worker.step_loop": "a step's failure is reported with its traceback",
}
NESTERS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith, ast.Match)
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

every_module = pytest.mark.parametrize(
    "module", [*house_modules(), *modules_of_tests()], ids=lambda module: module.name
)
every_house_module = pytest.mark.parametrize("module", house_modules(), ids=lambda m: m.name)


def _functions(tree: ast.AST) -> Iterator[FunctionNode]:
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode):
            yield node


def _length(node: FunctionNode) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def _nesting(node: ast.AST, depth: int = 0) -> int:
    deepest = depth
    for child in ast.iter_child_nodes(node):
        is_elif = isinstance(node, ast.If) and node.orelse == [child]
        step = 1 if isinstance(child, NESTERS) and not is_elif else 0
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        deepest = max(deepest, _nesting(child, depth + step))
    return deepest


@every_module
def test_limits(module: Module) -> None:
    is_test = module.name.startswith("tests.")
    lines = module.source.splitlines()
    wrong = []
    limit = TEST_FILE_LINES_MAX if is_test else FILE_LINES_MAX
    if len(lines) > limit:
        wrong.append(f"{len(lines)} lines, limit {limit}")
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_CHARACTERS_MAX:
            wrong.append(f"line {number} has {len(line)} characters")
    for function in _functions(module.tree):
        if _length(function) > FUNCTION_LINES_MAX:
            wrong.append(f"{function.name} has {_length(function)} lines")
        arguments = [*function.args.posonlyargs, *function.args.args]
        count = len([a for a in arguments if a.arg not in ("self", "cls")])
        if count > POSITIONAL_MAX and not is_test:
            wrong.append(f"{function.name} takes {count} positional parameters")
        if _nesting(function) > NESTING_MAX:
            wrong.append(f"{function.name} nests {_nesting(function)} deep")
    assert not wrong


@every_house_module
def test_opening_says_why_the_module_exists(module: Module) -> None:
    first = module.docstring.split("\n\n")[0].strip()
    assert first, "no module docstring"
    assert first[0].isupper() or first.startswith("`")
    assert first.endswith((".", ":")), "the first paragraph is not a sentence"


@every_house_module
def test_public_names_have_docstrings(module: Module) -> None:
    missing = []
    for node in module.tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_"):
            continue
        if ast.get_docstring(node) is None:
            missing.append(node.name)
    assert not missing


@every_house_module
def test_banned_constructs(module: Module) -> None:
    wrong = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            names = [] if node.type is None else ast.unparse(node.type).strip("()").split(", ")
            broad = node.type is None or {"Exception", "BaseException"} & set(names)
            if broad and module.name not in FIREWALLS and not _reraises(node):
                wrong.append(f"line {node.lineno}: catches everything outside a firewall")
        elif isinstance(node, FunctionNode) and node.name == "__del__":
            wrong.append(f"line {node.lineno}: __del__ is no owner")
        elif isinstance(node, ast.Attribute):
            spelled = ast.unparse(node)
            if spelled in ("time.sleep", "weakref.finalize", "trio.run_process", "torch.load"):
                wrong.append(f"line {node.lineno}: {spelled}")
            if spelled in ("trio.lowlevel.open_process", "threading.Thread", "atexit.register"):
                wrong.append(f"line {node.lineno}: {spelled}")
    assert [
        w for w in wrong if "threading.Thread" not in w or module.name != "triolet.runtime.llm"
    ] == []


def _reraises(handler: ast.ExceptHandler) -> bool:
    """A handler that ends in a bare `raise` only looks; it hides nothing."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise)


@every_house_module
def test_the_module_has_its_own_test_file(module: Module) -> None:
    relative = module.path.relative_to(ROOT)
    if module.is_package or relative.name == "__main__.py":
        pytest.skip("packages hold no code of their own")
    expected = ROOT / "tests" / relative.parent / f"test_{relative.name}"
    assert expected.exists(), f"{expected.relative_to(ROOT)} is missing"


def test_every_module_is_imported_or_a_declared_main() -> None:
    used = {
        target
        for module in (*house_modules(), *modules_of_tests())
        for item in module.imports()
        if (target := house_target(item.target)) is not None and target != module.name
    }
    text = "\n".join(m.source for m in (*house_modules(), *modules_of_tests()))
    dead = [
        module.name
        for module in house_modules()
        if not module.is_package
        and module.name not in used
        and '__name__ == "__main__"' not in module.source
        and f'"{module.name}"' not in text
        and f'".{module.name.rsplit(".", 1)[1]}"' not in text
    ]
    assert not dead
