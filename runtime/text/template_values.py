"""Values of chat templates whose text has no address of this process in it.

Python shows functions, methods and iterators with where they lie in memory, which tells whoever
wrote a template what the randomised layout of a process is to hide. All that a template gets of
such values comes through here: it may call and iterate, and prints what they are. Sans-IO.
"""

import types
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils

# Types of what is called; classes and macros show no address.
_FUNCTIONS = frozenset(
    {
        types.FunctionType,
        types.MethodType,
        types.BuiltinFunctionType,
        types.MethodWrapperType,
        jinja2.runtime.BlockReference,
    }
)


@attrs.frozen(repr=False, eq=False)
class TemplateFunction:
    """A function, a method or a block, for templates."""

    _function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return "function()"


@attrs.frozen(repr=False, eq=False)
class _TemplateIterator:
    """A generator or another iterator, for templates."""

    _iterator: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._iterator)

    def __repr__(self) -> str:
        return "iterator()"


class _Cycler(jinja2.utils.Cycler):
    """`cycler(…)`."""

    def __repr__(self) -> str:
        return "cycler()"


class _Joiner(jinja2.utils.Joiner):
    """`joiner(…)`."""

    def __repr__(self) -> str:
        return "joiner()"


def without_address(value: Any) -> Any:
    """The value, or what stands for a function."""
    return TemplateFunction(value) if type(value) in _FUNCTIONS else value


def made_without_address(value: Any) -> Any:
    """Result of a call or filter, or a stand-in for a function or an iterator."""
    if hasattr(type(value), "__next__") and not isinstance(value, jinja2.utils.Cycler):
        return _TemplateIterator(value)
    return without_address(value)


def function_of(value: Any) -> Any:
    """Function to call."""
    return value._function if type(value) is TemplateFunction else value


class AddresslessSandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """jinja2's immutable sandbox, whose attributes and globals show no address.

    Its subclass sees to what calls and filters make.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.globals["range"] = TemplateFunction(jinja2.sandbox.safe_range)
        self.globals |= {"cycler": _Cycler, "joiner": _Joiner}

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Get an attribute; functions show no address."""
        return without_address(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Get an item; functions show no address."""
        return without_address(super().getitem(obj, argument))
