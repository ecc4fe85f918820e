"""Sandbox for chat templates: jinja2's immutable one, with a deadline and a budget.

jinja2 keeps a template from reaching the host, not from taking for ever or filling the memory. Here
every block that is entered and every value that is made is charged in characters. What makes large
values out of small ones (operators, literals, some filters and methods) is charged before it is
computed: one call into C cannot be interrupted, so each must end within some 10 ms.

`INLINE` limits are so narrow that the event loop can render under them; the clock is read in each
block. `IN_THREAD` there is room for all that is real, and a trace function ends the rendering at
its deadline, at the next line of the template or call of a function.
"""

import functools
import itertools
import re
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import attrs
import jinja2
import jinja2.compiler
import jinja2.nodes
import jinja2.runtime

from .template_values import AddresslessSandbox, function_of, made_without_address

# The characters of one value, of the text as well: a prompt may have 2**22.
VALUE_CHARACTERS_MAX = 5 * 2**20
# An entry of a container counts as much; so one has at most 80 000.
ENTRY_CHARACTERS = 64
# Widths, precisions and counts; templates of known families use up to 4.
NUMBER_MAX = 4096
# Limit of integers; a timestamp in nanoseconds has 61 bits.
INTEGER_BITS_MAX = 4096
# Costly in ways of their own, and of no use in a prompt.
FILTERS_LEFT_OUT = ("pprint", "striptags", "urlize", "wordwrap", "xmlattr")
_METHODS_LEFT_OUT = frozenset(
    {"encode", "translate", "maketrans", "to_bytes", "from_bytes", "striptags", "unescape"}
)
# Filters that list what they are given, or give a list.
_LISTING = frozenset(
    {"batch", "dictsort", "groupby", "join", "list", "slice", "sort", "sum", "unique"}
)
# Filters that take some 20 ns a character, without a pause.
_SLOW = frozenset({"capitalize", "float", "int", "title", "urlencode", "wordcount"})
SLOW_FACTOR = 16
# Filters and methods that take the width of the text or list that they make.
_WIDENING = frozenset(
    {"batch", "center", "expandtabs", "indent", "ljust", "rjust", "round", "slice", "zfill"}
)
_WIDE_PERCENT = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(?:\*|\d{5}|\d*\.(?:\*|\d{5}))")
# Widths and precisions of a `%` format that are not too wide.
_WIDTHS = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\d*)(?:\.(\d*))?")
# A width of five digits, or one that is a field itself.
_WIDE_FIELD = re.compile(r"\d{5}|\{[^{}]*:[^{}]*\{")
# Characters that `str.split()` and `str.splitlines()` take for a separator.
_SPACES = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_CONTAINERS: Any = (
    *(dict, list, tuple, range),
    *(type({}.keys()), type({}.values()), type({}.items())),
)


class TemplateTooCostly(jinja2.TemplateRuntimeError):
    """A template takes more time or memory than its limits allow, or too large numbers."""


class _DeadlinePassed(BaseException):
    """Raised by the trace function; no `except Exception` within jinja2 can keep it."""


@attrs.frozen
class RenderLimits:
    """Limits of one rendering. `traced` costs three times the time and sees every line."""

    seconds: float
    # A template copies a message some five times.
    characters: int
    traced: bool


INLINE = RenderLimits(seconds=0.01, characters=2**17, traced=False)
IN_THREAD = RenderLimits(seconds=2.0, characters=2**26, traced=True)


@attrs.define(eq=False)
class _Budget:
    """Rest of one rendering's limits."""

    left: int
    until: float

    def charge(self, characters: int) -> None:
        self.left -= characters
        if self.left < 0 or characters > VALUE_CHARACTERS_MAX:
            raise TemplateTooCostly(f"{characters} characters")


_budget: ContextVar[_Budget] = ContextVar("budget of the template that is being rendered")


def render_within(
    limits: RenderLimits, template: jinja2.Template, values: dict[str, Any], source_characters: int
) -> str:
    """Render a template of a `BoundedSandbox`; for any thread.

    The source is charged as well: it bounds what has no loop. Raises `TemplateTooCostly`, and what
    the template does.
    """
    budget = _Budget(limits.characters, time.perf_counter() + limits.seconds)
    token = _budget.set(budget)
    try:
        budget.charge(source_characters + _weigh(values))
        if limits.traced:
            return _render_traced(template, values, budget.until)
        return template.render(values)
    except _DeadlinePassed:
        raise TemplateTooCostly(f"not rendered within {limits.seconds:g} s") from None
    finally:
        _budget.reset(token)


def _render_traced(template: jinja2.Template, values: dict[str, Any], until: float) -> str:
    now = time.perf_counter

    def trace_line(_frame: types.FrameType, _event: str, _arg: object) -> Any:
        if now() > until:
            raise _DeadlinePassed
        return trace_line

    def trace_call(frame: types.FrameType, _event: str, _arg: object) -> Any:
        if now() > until:
            raise _DeadlinePassed
        return trace_line if frame.f_code.co_filename == "<template>" else None

    before = sys.gettrace()
    sys.settrace(trace_call)
    try:
        return template.render(values)
    finally:
        sys.settrace(before)


class _Code(jinja2.compiler.CodeGenerator):
    """Lets the environment see what a template makes without asking it, and every block."""

    def blockvisit(self, nodes: Iterable[jinja2.nodes.Node], frame: Any) -> None:
        nodes = list(nodes)
        outputs = [each for each in nodes if isinstance(each, jinja2.nodes.Output)]
        parts = sum(len(each.nodes) for each in outputs)
        self.writeline(f"environment.enter_block({ENTRY_CHARACTERS + 8 * parts})")
        super().blockvisit(nodes, frame)

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: Any) -> None:  # noqa: N802
        texts = jinja2.nodes.List(node.nodes, lineno=node.lineno)
        self._write_call("join_texts", super().visit_List, texts, frame)

    def visit_List(self, node: jinja2.nodes.List, frame: Any) -> None:  # noqa: N802
        self._write_call("bounded", super().visit_List, node, frame)

    def visit_Dict(self, node: jinja2.nodes.Dict, frame: Any) -> None:  # noqa: N802
        self._write_call("bounded", super().visit_Dict, node, frame)

    def visit_Tuple(self, node: jinja2.nodes.Tuple, frame: Any) -> None:  # noqa: N802
        if node.ctx == "load":
            self._write_call("bounded", super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Getitem(self, node: jinja2.nodes.Getitem, frame: Any) -> None:  # noqa: N802
        if isinstance(node.arg, jinja2.nodes.Slice):
            self._write_call("bounded", super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)

    def _write_call(self, name: str, visit: Callable[..., None], node: Any, frame: Any) -> None:
        self.write(f"environment.{name}(")
        visit(node, frame)
        self.write(")")


class BoundedSandbox(AddresslessSandbox):
    """jinja2's immutable sandbox, bounded; for `render_within` alone."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = _Code

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in FILTERS_LEFT_OUT:
            del self.filters[name]
        del self.globals["lipsum"]
        for name, function in self.filters.items():
            self.filters[name] = bounded_filter(name, function)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse the methods that are left out."""
        return attr not in _METHODS_LEFT_OUT and super().is_safe_attribute(obj, attr, value)

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Bound an operator, then compute it."""
        if operator == "+" and type(left) is type(right) is str:
            _budget.get().charge(len(left) + len(right))
            return left + right
        match operator:
            case "+" if isinstance(left, str | list | tuple):
                _budget.get().charge(_weigh(left) + _weigh(right))
            case "*":
                _bound_product(left, right)
            case "**":
                _bound_bits(left.bit_length() * abs(right) if _are_int(left, right) else 0)
            case "%" if isinstance(left, str):
                _bound_percent(left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: jinja2.runtime.Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Bound a call, then do it."""
        obj = function_of(obj)
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            if obj.__name__ == "join":
                args = ([*args[0]], *args[1:])
                _bound_join(args[0], owner)
            else:
                _bound_arguments(obj.__name__, owner, args, kwargs)
        elif not isinstance(obj, jinja2.runtime.Macro) or obj.catch_varargs or obj.catch_kwargs:
            _budget.get().charge(_weigh((args, kwargs)))
        return made_without_address(self.bounded(super().call(context, obj, *args, **kwargs)))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` and `str.format_map`, bounded."""
        apply = super().wrap_str_format(value)
        if apply is None:
            return None
        form = value.__self__

        def format_bounded(*args: Any, **kwargs: Any) -> str:
            if _WIDE_FIELD.search(form):
                raise TemplateTooCostly("a format is too wide")
            _budget.get().charge(len(form) + form.count("{") * _weigh((args, kwargs)))
            return apply(*args, **kwargs)

        return format_bounded

    def bounded(self, value: Any) -> Any:
        """The value, once it is charged; compiled templates call it for literals and slices."""
        if isinstance(value, str | list | tuple | dict):
            _budget.get().charge(_weigh(value))
        return value

    def join_texts(self, values: Iterable[Any]) -> str:
        """Join texts, for `~`."""
        return self.concat(map(str, map(self.bounded, values)))

    @staticmethod
    def enter_block(characters: int) -> None:
        """Called by compiled templates at each turn of a loop, beginning of a macro and so on."""
        budget = _budget.get()
        budget.charge(characters)
        if time.perf_counter() > budget.until:
            raise TemplateTooCostly("too slow")

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """The text of an output, a macro or a block."""
        budget = _budget.get()
        texts = []
        for part in parts:
            budget.left -= 1 + len(part)
            if budget.left < 0:
                raise TemplateTooCostly("too long an output")
            texts.append(part)
        return "".join(texts)


def _weigh(value: Any) -> int:
    """Characters of a value's text, about, what is in it twice counted twice.

    What is nested by reference can be small in memory and without end as text. Raises
    `TemplateTooCostly` beyond what may be charged.
    """
    if type(value) is str:
        return len(value)
    most = min(_budget.get().left, VALUE_CHARACTERS_MAX)
    total = 0
    waiting: list[Any] = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            total += len(each)
        elif isinstance(each, _CONTAINERS):
            total += ENTRY_CHARACTERS * len(each)
            if total > most:
                raise TemplateTooCostly("too large a value")
            if isinstance(each, range):
                continue
            for item in itertools.chain(each, each.values() if type(each) is dict else ()):
                if type(item) is str:  # nearly always
                    total += len(item)
                else:
                    waiting.append(item)
    return total


def _are_int(*values: Any) -> bool:
    return all(isinstance(value, int) for value in values)


def _bound_bits(bits: int) -> None:
    if bits > INTEGER_BITS_MAX:
        raise TemplateTooCostly("an integer is too large")


def _bound_product(left: Any, right: Any) -> None:
    if _are_int(left, right):
        _bound_bits(left.bit_length() + right.bit_length())
        return
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, str | list | tuple) and isinstance(times, int):
            _budget.get().charge(_weigh(sequence) * max(0, times))


def _bound_percent(form: str, values: Any) -> None:
    if _WIDE_PERCENT.search(form):
        raise TemplateTooCostly("a format is too wide")
    widths = sum(int(digits or 0) for pair in _WIDTHS.findall(form) for digits in pair)
    _budget.get().charge(len(form) + widths + form.count("%") * _weigh(values))


def _bound_arguments(name: str, value: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Before a method of a text, or a filter."""
    charge = _budget.get().charge
    given = [*args, *kwargs.values()]
    texts = [each for each in given if isinstance(each, str)]
    width = max([abs(each) for each in given if isinstance(each, int)], default=0)
    if name in _WIDENING and width > NUMBER_MAX:
        raise TemplateTooCostly("a number is too large")
    match name:
        case "replace" if len(texts) == 2:
            charge(str(value).count(texts[0]) * len(texts[1]))
        case "expandtabs":
            charge(value.count("\t") * max(8, width))
        case "indent":
            charge(str(value).count("\n") * max([4, width, *map(len, texts)]))
        case "split" | "rsplit" if texts:
            charge(value.count(texts[0]) * ENTRY_CHARACTERS)
        case "split" | "rsplit" | "splitlines":
            charge(sum(map(value.count, _SPACES)) * ENTRY_CHARACTERS)
        case "join":
            _bound_join(value, texts[0] if texts else "")
        case "format":
            _bound_percent(str(value), given)
        case "sum" if not isinstance(kwargs.get("start", [*args, 0, 0][1]), int | float):
            raise TemplateTooCostly("only numbers are summed up")


def _bound_join(values: Any, separator: str) -> None:
    _budget.get().charge(_weigh(values) + len(values) * len(separator))


def bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, bounded before and after; what it is passed by jinja2 stays as it was."""
    skipped = 0 if getattr(function, "jinja_pass_arg", None) is None else 1
    is_listing = name in _LISTING
    factor = ENTRY_CHARACTERS if is_listing else SLOW_FACTOR if name in _SLOW else 0

    @functools.wraps(function)
    def apply(*args: Any, **kwargs: Any) -> Any:
        passed, value, given = args[:skipped], args[skipped], args[skipped + 1 :]
        if is_listing and isinstance(value, Iterator):
            value = list(value)
        elif factor and isinstance(value, str):
            _budget.get().charge(factor * len(value))
        if given or kwargs or name == "join":
            _bound_arguments(name, value, given, kwargs)
        result = function(*passed, value, *given, **kwargs)
        if is_listing and isinstance(result, Iterator):
            result = list(result)
        if isinstance(result, str | list | tuple):
            _budget.get().charge(_weigh(result))
        return made_without_address(result)

    return apply
