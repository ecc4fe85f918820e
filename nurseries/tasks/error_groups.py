"""Error groups of one element, unwrapped at the public edges of this room.

Strict nurseries wrap even a single error, once per nursery. A caller who wrote no nursery should
not have to know how many are inside: it gets the bare error, or a group if there are truly several.
"""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def single_errors_unwrapped() -> Iterator[None]:
    """Raise the only leaf of a group bare; leave groups of several, and bare errors, as they are.

    The error keeps its own cause, context and traceback: the groups around it add nothing.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        leaf = single_error(group)
        if leaf is group:
            raise
        cause, context, suppress = leaf.__cause__, leaf.__context__, leaf.__suppress_context__
        try:
            raise leaf
        finally:
            # `raise` has hung the group into the context of its own leaf; take it out again.
            leaf.__cause__, leaf.__context__ = cause, context
            leaf.__suppress_context__ = suppress
            del leaf, cause, context


def first_error(error: BaseException) -> BaseException:
    """The first leaf: where many failed alike, one says enough."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def single_error(error: BaseException) -> BaseException:
    """The innermost error as long as each group around it has one element; else what is left."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
