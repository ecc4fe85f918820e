"""Where chat templates run: jinja2's immutable sandbox, with every loop, call and operator counted.

jinja2 keeps templates from reaching the host, not from taking for ever: its loops may be nested,
and one expression may make a text of gigabytes, even while it is being compiled. Here the compiled
program counts (`template_budget`), and nothing is computed at compile time: without a budget, the
counting functions refuse. Must not know conversations or where templates come from.
"""

import functools
import types
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any

import attrs
import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.runtime
import jinja2.sandbox
import jinja2.visitor
import markupsafe

from .template_budget import CHARACTERS_PER_STEP, Budget

# Without a place in a prompt, and costly in ways of their own.
FILTERS_LEFT_OUT = ("pprint", "striptags", "urlize", "wordwrap", "xmlattr")
# Methods that make text out of numbers or bytes, or by a table, as large as they are told.
_METHODS_LEFT_OUT = frozenset(
    {"encode", "translate", "maketrans", "to_bytes", "from_bytes", "striptags", "unescape"}
)
_COMPARISONS = frozenset(
    {"eq", "==", "equalto", "ne", "!=", "lt", "<", "lessthan", "le", "<=", "gt", ">",
     "greaterthan", "ge", ">=", "in", "lower", "upper"}
)  # fmt: skip
# A macro's call costs as much as so many characters do.
CALL_CHARACTERS = 8 * CHARACTERS_PER_STEP
# Filters of ours that the compiled program calls; no template can write these names down.
_STEP, _WEIGHED, _SLICED = " step", " weighed", " sliced"
_budget: ContextVar[Budget] = ContextVar("budget of the template that is being rendered")


@attrs.define(eq=False)
class _Rendering:
    """See `rendering`; a class, as there is one for each request."""

    _token: Token[Budget] | None = None

    def __enter__(self) -> Budget:
        budget = Budget()
        self._token = _budget.set(budget)
        return budget

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _budget.reset(self._token)


def rendering() -> _Rendering:
    """The time in which one template may be rendered, on a fresh budget."""
    return _Rendering()


class CountingSandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Renders only within `rendering`; what costs too much raises `TemplateTooCostly`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, finalize=_written)
        for name in FILTERS_LEFT_OUT:
            del self.filters[name]
        del self.globals["lipsum"]
        for name, function in self.filters.items():
            self.filters[name] = counted_filter(name, function)
        for name in _COMPARISONS:
            compare: Any = self.tests[name]
            self.tests[name] = _counted_test(compare)
        self.filters |= {_STEP: _step, _WEIGHED: _weighed, _SLICED: _sliced}

    def _parse(self, source: str, *where: Any) -> jinja2.nodes.Template:
        """The program, counting."""
        tree = super()._parse(source, *where)
        counting = _Counting().visit(tree)
        assert isinstance(counting, jinja2.nodes.Template)
        counting.set_environment(self)
        return counting

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Without the methods that are left out."""
        return attr not in _METHODS_LEFT_OUT and super().is_safe_attribute(obj, attr, value)

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Count an operator, then compute it."""
        budget = _budget.get()
        match operator:
            case "+":
                budget.add(left, right)
            case "*":
                budget.multiply(left, right)
            case "**":
                budget.power(left, right)
            case _:
                budget.percent(left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: jinja2.runtime.Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Count a call, then do it."""
        budget = _budget.get()
        budget.charge(1)
        owner = getattr(obj, "__self__", None)
        given: Any = args
        if isinstance(owner, str):
            given = budget.text_method(owner, obj.__name__, args, kwargs)
        elif not isinstance(obj, jinja2.runtime.Macro) or obj.catch_varargs or obj.catch_kwargs:
            if isinstance(owner, list | tuple):
                budget.weigh(owner)
            budget.weigh(args)
            budget.weigh(kwargs)
        result = super().call(context, obj, *given, **kwargs)
        return _counted_result(budget, result)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` and `str.format_map`, with every field counted."""
        if not isinstance(value, types.MethodType | types.BuiltinMethodType):
            return None
        form = value.__self__
        if not isinstance(form, str) or value.__name__ not in ("format", "format_map"):
            return None
        takes_map = value.__name__ == "format_map"

        def format_counted(*args: Any, **kwargs: Any) -> str:
            _budget.get().charge_text(len(form))
            if takes_map:
                (kwargs,), args = args, ()
            if isinstance(form, markupsafe.Markup):
                return type(form)(
                    _EscapeFormatter(self, escape=form.escape).vformat(form, args, kwargs)
                )
            return _Formatter(self).vformat(form, args, kwargs)

        return format_counted


class _CountedFields(jinja2.sandbox.SandboxedFormatter):
    def convert_field(self, value: Any, conversion: Any) -> Any:
        _budget.get().weigh(value)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> Any:
        _budget.get().form_field(value, format_spec)
        return super().format_field(value, format_spec)


class _Formatter(_CountedFields):
    """Of plain text."""


class _EscapeFormatter(_CountedFields, jinja2.sandbox.SandboxedEscapeFormatter):
    """Of text that is marked as HTML."""


def counted_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, counted before and after; what it is passed by jinja2 stays as it was."""
    skipped = 0 if getattr(function, "jinja_pass_arg", None) is None else 1

    @functools.wraps(function)
    def apply(*args: Any, **kwargs: Any) -> Any:
        budget = _budget.get()
        passed, value, given = args[:skipped], args[skipped], args[skipped + 1 :]
        value = budget.filtered(name, value, given, kwargs)
        return _counted_result(budget, function(*passed, value, *given, **kwargs))

    return apply


def _counted_test(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def apply(*args: Any, **kwargs: Any) -> Any:
        _budget.get().weigh(args)
        return function(*args, **kwargs)

    return apply


def _counted_result(budget: Budget, result: Any) -> Any:
    if isinstance(result, str):
        budget.charge_text(len(result))
    elif isinstance(result, list | tuple):
        budget.charge(len(result))
    elif isinstance(result, types.GeneratorType):
        return budget.counted(result)
    return result


def _step(characters: int) -> str:
    """A turn of a loop, a beginning of a macro, or so many characters written."""
    _budget.get().charge_text(characters)
    return ""


def _weighed(value: Any) -> Any:
    _budget.get().weigh(value)
    return value


def _sliced(value: Any) -> Any:
    """About to be copied: of a container only its entries' places."""
    _budget.get().add(value, "")
    return value


@jinja2.pass_context
def _written(_: jinja2.runtime.Context, value: Any) -> Any:
    """Called for every expression that is written; its context keeps it from compile time."""
    _budget.get().weigh(value)
    return value


class _Counting(jinja2.visitor.NodeTransformer):
    """Puts the counting into a program: where it turns, compares, writes, and nests values."""

    def visit_For(self, node: jinja2.nodes.For) -> Any:  # noqa: N802
        return self._counted_body(node, 0)

    def _called(self, node: Any) -> Any:
        return self._counted_body(node, CALL_CHARACTERS)

    visit_Macro = visit_CallBlock = visit_Block = _called  # noqa: N815 - jinja2's names

    def _counted_body(self, node: Any, characters: int) -> Any:
        self.generic_visit(node)
        count = _filter(jinja2.nodes.Const(characters), _STEP, node)
        node.body.insert(0, jinja2.nodes.ExprStmt(count, lineno=node.lineno))
        return node

    def visit_Output(self, node: jinja2.nodes.Output) -> Any:  # noqa: N802
        data = [each for each in node.nodes if isinstance(each, jinja2.nodes.TemplateData)]
        self.generic_visit(node)
        characters = jinja2.nodes.Const(sum(len(each.data) for each in data))
        if characters.value:
            node.nodes.insert(0, _filter(characters, _STEP, node))
        return node

    def visit_Compare(self, node: jinja2.nodes.Compare) -> Any:  # noqa: N802
        self.generic_visit(node)
        node.expr = _weigh(node.expr)
        for operand in node.ops:
            operand.expr = _weigh(operand.expr)
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> Any:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_weigh(each) for each in node.nodes]
        return node

    def visit_Getitem(self, node: jinja2.nodes.Getitem) -> Any:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, jinja2.nodes.Slice):
            node.node = _filter(node.node, _SLICED, node)
        return node

    def _literal(self, node: Any) -> Any:
        self.generic_visit(node)
        return node if getattr(node, "ctx", "load") != "load" else _weigh(node)

    visit_List = visit_Tuple = visit_Dict = _literal  # noqa: N815


def _weigh(node: Any) -> Any:
    return node if isinstance(node, jinja2.nodes.Const) else _filter(node, _WEIGHED, node)


def _filter(value: Any, name: str, at: Any) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(value, name, [], [], None, None, lineno=at.lineno)
