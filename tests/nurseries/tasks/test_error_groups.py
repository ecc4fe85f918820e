"""One error comes bare, several stay a group, and nothing of the error itself is lost."""

import pytest
import trio

from triolet.nurseries.tasks.error_groups import single_error, single_errors_unwrapped


async def test_a_single_error_of_nested_nurseries_comes_bare_with_its_cause() -> None:
    cause = KeyError("first")

    async def fail() -> None:
        raise ValueError("then") from cause

    with pytest.raises(ValueError, match="then") as caught, single_errors_unwrapped():
        async with trio.open_nursery(), trio.open_nursery() as nursery:
            nursery.start_soon(fail)
    assert caught.value.__cause__ is cause
    assert not isinstance(caught.value.__context__, BaseExceptionGroup)


def test_several_errors_stay_a_group() -> None:
    group = ExceptionGroup("two", [ValueError(), KeyError()])
    with pytest.raises(ExceptionGroup) as caught, single_errors_unwrapped():
        raise group
    assert caught.value is group


def test_bare_errors_and_success_pass() -> None:
    with single_errors_unwrapped():
        pass
    with pytest.raises(ValueError, match="bare"), single_errors_unwrapped():
        raise ValueError("bare")


def test_single_error_goes_as_deep_as_there_is_one() -> None:
    two = ExceptionGroup("two", [ValueError(), KeyError()])
    assert single_error(ExceptionGroup("outer", [two])) is two


async def test_a_cancellation_alone_reaches_its_scope() -> None:
    with trio.CancelScope() as scope, single_errors_unwrapped():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            scope.cancel("over")
    assert scope.cancelled_caught
