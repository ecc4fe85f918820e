"""Counts what rendering a chat template costs, and refuses before it costs too much.

Sans-IO: values in, a lower count or a refusal out. One *step* is about a microsecond or 64
characters made or read; text and containers are counted before they are made, so the budget bounds
time and memory alike. Must not know how templates are compiled or who renders them.
"""

import re
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any

import attrs
import jinja2
import jinja2.utils

# Two seconds at the very worst. Templates of known families take some 30 steps a message, and one
# for each 64 characters of it.
STEPS_MAX = 2_000_000
CHARACTERS_PER_STEP = 64
# Widths, precisions, counts; templates of known families use up to 4.
NUMBER_MAX = 2**16
# What integers may grow to; a timestamp in nanoseconds has 61 bits.
INTEGER_BITS_MAX = 4096
# Of a text that is read as a number, and of one with `%` in it.
PATTERN_CHARACTERS_MAX = 4096
_WIDE = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(?:\*|\d{5}|\d*\.(?:\*|\d{5}))")
_DIGITS = re.compile(r"\d{5}")
_VIEWS = (KeysView, ValuesView, ItemsView)


class TemplateTooCostly(jinja2.TemplateRuntimeError):
    """A template takes more time or memory than it may."""


@attrs.define(eq=False)
class Budget:
    """What one rendering may still cost. Every method raises `TemplateTooCostly`."""

    left: int = STEPS_MAX

    def charge(self, steps: int) -> None:
        """Count so many steps."""
        self.left -= steps
        if self.left < 0:
            raise TemplateTooCostly("too many steps")

    def charge_text(self, characters: int) -> None:
        """Count the making or reading of so many characters."""
        self.charge(1 + characters // CHARACTERS_PER_STEP)

    def weigh(self, value: object) -> int:
        """Charge for all that is in a value, as often as it is in it; returns the steps.

        What is nested by reference can be small in memory and without end as text.
        """
        if type(value) is str:  # nearly always; the rest is for what is nested
            cost = 1 + len(value) // CHARACTERS_PER_STEP
            self.charge(cost)
            return cost
        before = self.left
        waiting: list[Any] = [value]
        while waiting:
            value = waiting.pop()
            if isinstance(value, str):
                self.charge_text(len(value))
            elif isinstance(value, dict):
                self.charge(1 + len(value))
                waiting += value.keys()
                waiting += value.values()
            elif isinstance(value, (list, tuple, *_VIEWS)):
                self.charge(1 + len(value))
                waiting += value
            elif isinstance(value, range):
                self.charge(1 + len(value))
            elif isinstance(value, jinja2.utils.Namespace):
                waiting.append(vars_of(value))
            else:
                self.charge(1)
        return before - self.left

    def counted(self, values: Iterator[Any]) -> Iterator[Any]:
        """The same values, each weighed when it comes."""
        for value in values:
            self.weigh(value)
            yield value

    # ---- operators

    def multiply(self, left: object, right: object) -> None:
        """Before `left * right`."""
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                cost = self.weigh(sequence)
                self.charge(cost * max(0, times))
                return
        self._check_bits(_bits(left) + _bits(right))

    def power(self, base: object, exponent: object) -> None:
        """Before `base ** exponent`."""
        if isinstance(base, int) and isinstance(exponent, int):
            self._check_bits(_bits(base) * max(1, abs(exponent)))

    def _check_bits(self, bits: int) -> None:
        if bits > INTEGER_BITS_MAX:
            raise TemplateTooCostly("an integer is too large")

    def add(self, left: object, right: object) -> None:
        """Before `left + right`."""
        for side in (left, right):
            if isinstance(side, str):
                self.charge_text(len(side))
            elif isinstance(side, list | tuple):
                self.charge(1 + len(side) // 8)

    def percent(self, form: object, values: object) -> None:
        """Before `form % values`."""
        if isinstance(form, str):
            if len(form) > PATTERN_CHARACTERS_MAX or _WIDE.search(form):
                raise TemplateTooCostly("a format is too wide")
            self.charge(self.weigh(values) * form.count("%"))

    def form_field(self, value: object, spec: str) -> None:
        """Before `value` is formatted by `spec`."""
        if _DIGITS.search(spec):
            raise TemplateTooCostly("a format is too wide")
        self.weigh(value)

    # ---- what is called with a text

    def numbers(self, values: Iterable[object]) -> int:
        """Charge for the numbers that a function is given; the largest."""
        largest = 0
        for value in values:
            if isinstance(value, int):
                largest = max(largest, abs(value))
        if largest > NUMBER_MAX:
            raise TemplateTooCostly("a number is too large")
        self.charge(largest // 4)
        return largest

    def text_method(
        self, text: str, name: str, args: Sequence[Any], options: Mapping[str, Any]
    ) -> Sequence[Any]:
        """Before a method of `text`; the arguments to call it with."""
        self.charge_text(len(text))
        largest = self.numbers((*args, *options.values()))
        match name:
            case "expandtabs":
                self.charge_text(text.count("\t") * max(8, largest))
            case "replace":
                self.replacement(text, args)
            case "join" if args:
                args = [self._joined(args[0], text), *args[1:]]
            case "split" | "rsplit" | "splitlines":
                self.charge(len(text) // 4)
            case _:
                for value in args:
                    self.weigh(value)
        return args

    def replacement(self, text: str, args: Sequence[Any]) -> None:
        """Before `text.replace(*args)`."""
        if len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
            count = text.count(args[0]) if args[0] else len(text) + 1
            self.charge_text(count * len(args[1]))

    def _joined(self, values: Any, separator: str) -> Any:
        if not isinstance(values, list | tuple | str | dict | range):
            values = list(values)
        self.weigh(values)
        self.charge_text(len(values) * len(separator))
        return values

    def filtered(
        self, name: str, value: Any, args: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        """Before a filter is applied to `value`; the value to apply it to."""
        self.charge(1)
        given = (*args, *options.values())
        largest = self.numbers(given)
        for each in given:
            self.weigh(each)
        if name in _FREE:
            return value
        if name in _SHALLOW:
            self.charge(len(value) if hasattr(value, "__len__") else 1)
            return value
        self.weigh(value)
        texts = [each for each in given if isinstance(each, str)]
        match name:
            case "join":
                return self._joined(value, texts[0] if texts else "")
            case "replace":
                self.replacement(str(value), texts)
            case "indent":
                width = max([largest, *map(len, texts)])
                self.charge_text(str(value).count("\n") * max(4, width))
            case "format":
                self.percent(str(value), list(given))
            case "int" if isinstance(value, str) and len(value) > PATTERN_CHARACTERS_MAX:
                raise TemplateTooCostly("a number is too long")
            case "sum" if any(not isinstance(each, int | float | str) for each in given):
                raise TemplateTooCostly("only numbers are summed up")
        return value


# Filters that look at no more than one entry of what they are given.
_FREE = frozenset({"length", "count", "first", "last", "default", "d", "attr", "random"})
# Those that look at the entries, but not into them; what they give out is weighed.
_SHALLOW = frozenset(
    {"list", "items", "map", "select", "reject", "selectattr", "rejectattr", "reverse", "batch",
     "slice"}
)  # fmt: skip


def vars_of(namespace: jinja2.utils.Namespace) -> dict[str, Any]:
    """What is in a namespace; jinja2 keeps it under a private name."""
    values: dict[str, Any] = object.__getattribute__(namespace, "_Namespace__attrs")
    return values


def _bits(value: object) -> int:
    return value.bit_length() if isinstance(value, int) else 0
