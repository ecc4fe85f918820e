"""Services outlive the body of their block; a single error comes bare out of nurseries."""

import pytest
import trio

from triolet.nurseries.tasks.service import (
    ServiceEnded,
    open_service,
    single_error,
    single_errors_unwrapped,
    start_service,
    start_service_soon,
)
from triolet.nurseries.tasks.task_tree import task_tree
from triolet.tests.live_tasks import find_background_task, find_background_tasks, find_tasks


class Sender:
    """A service that takes messages while it lives, and remembers what happened in which order."""

    def __init__(self) -> None:
        self.alive = False
        self.log: list[str] = []

    async def run(self, *, task_status: trio.TaskStatus[str]) -> None:
        self.alive = True
        try:
            task_status.started("sender")
            await trio.sleep_forever()
        finally:
            self.alive = False
            self.log.append("service ended")

    async def send(self, message: str) -> None:
        await trio.lowlevel.checkpoint()
        assert self.alive
        self.log.append(message)


async def test_the_tree_says_what_a_service_waits_for() -> None:
    async with open_service(Sender().run, name="sender", waits_for="frames"):
        (node,) = find_tasks(task_tree(), "sender")
        assert (node.state, node.waiting_for, node.since_s) == ("waiting", "frames", 0.0)


async def test_a_cancelled_body_can_still_send_its_abort() -> None:
    sender = Sender()
    with trio.CancelScope() as scope:
        async with open_service(sender.run, name="sender"):
            try:
                scope.cancel("the client went away")
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked()
                    await sender.send("abort")
    assert scope.cancelled_caught
    assert sender.log == ["abort", "service ended"]


async def test_a_service_that_fails_cancels_its_body_and_is_raised_bare() -> None:
    reasons: list[str] = []

    async def fail(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.testing.wait_all_tasks_blocked()
        raise ValueError("broken")

    async def use() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            reasons.append(str(cancelled))
            raise

    with pytest.raises(ValueError, match="broken"):
        async with open_service(fail, name="sender"):
            await use()
    assert "sender has ended" in reasons[0]


async def test_a_service_that_returns_early_has_failed() -> None:
    async def serve(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()

    with pytest.raises(ServiceEnded, match="sender ended before those who use it"):
        async with open_service(serve, name="sender"):
            await trio.sleep_forever()


async def test_a_service_cancelled_through_its_handle_has_failed() -> None:
    sender = Sender()

    async def use() -> None:
        find_background_task("sender").cancel("the test found it")
        await trio.sleep_forever()

    with pytest.raises(ServiceEnded):
        async with open_service(sender.run, name="sender"):
            await use()


async def test_what_the_body_raises_comes_bare_and_the_service_ends() -> None:
    sender = Sender()
    with pytest.raises(KeyError):
        async with open_service(sender.run, name="sender"):
            raise KeyError("body")
    assert sender.log == ["service ended"]


async def test_a_start_that_fails_or_is_cancelled_leaves_nothing() -> None:
    async def fail(*, task_status: trio.TaskStatus[None]) -> None:
        raise ValueError("at start")

    with pytest.raises(ValueError, match="at start"):
        async with open_service(fail, name="sender"):
            raise AssertionError("it started")


async def test_a_service_that_starts_when_its_start_is_cancelled_already_ends() -> None:
    """Were it shielded by then, it would never be cancelled."""

    async def start_late(*, task_status: trio.TaskStatus[None]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            task_status.started()
            await trio.sleep_forever()

    async def use() -> None:
        with trio.move_on_after(0):
            async with open_service(start_late, name="sender"):
                raise AssertionError("it started")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(use)
        await trio.testing.wait_all_tasks_blocked()
        left = find_background_tasks("sender")
        for task in left:
            task.cancel("it would be there for ever")
    assert left == []


async def _serve(*, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    task_status.started()
    await trio.sleep_forever()


@pytest.mark.parametrize("soon", [True, False])
async def test_a_service_of_a_nursery_that_is_cancelled_alone_ends_all(soon: bool) -> None:
    async def use() -> None:
        async with trio.open_nursery() as nursery:
            if soon:
                service = start_service_soon(nursery, _serve, name="sender")
            else:
                service = await start_service(nursery, _serve, name="sender", waits_for="work")
            service.cancel("the test cancels it alone")
            await trio.sleep_forever()

    with pytest.RaisesGroup(pytest.RaisesExc(ServiceEnded, match="sender")):
        await use()


async def test_a_nursery_that_is_cancelled_with_its_service_ends_quietly() -> None:
    async with trio.open_nursery() as nursery:
        await start_service(nursery, _serve, name="sender")
        nursery.cancel_scope.cancel("all of it")


async def test_a_service_of_a_nursery_may_return() -> None:
    async with trio.open_nursery() as nursery:
        start_service_soon(nursery, trio.lowlevel.checkpoint, name="sender")


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
