"""The tasks that every engine has: there for the body, and none may end without the others."""

import pytest
import trio

from triolet.engine.errors import StepTimeout
from triolet.engine.process.services import open_engine_services
from triolet.engine.step_messages import Mask, Step, StepResult
from triolet.nurseries.tasks.service import ServiceEnded
from triolet.nurseries.tasks.task_tree import find_background_task, find_background_tasks
from triolet.tests.engine.process.test_server import FRONTEND, add, make_server
from triolet.transports.links.channel import PeerUp, Received

TASKS = [
    "grammar-compiler",
    "input-handler",
    "orphan-watch",
    "statistics",
    "step-loop",
    "utilities",
]


class LateExecutor:
    """Is late in its first step."""

    def submit(self, step: Step) -> None:
        pass

    def submit_mask(self, mask: Mask) -> None:
        raise NotImplementedError

    async def result(self, number: int) -> StepResult:
        await trio.lowlevel.checkpoint()
        raise StepTimeout(number, 1.0, (0,))


async def test_the_tasks_are_there_for_the_body_only() -> None:
    server, _ = make_server()
    async with open_engine_services(server, LateExecutor()):
        assert sorted(task.name for task in find_background_tasks()) == TASKS
    assert find_background_tasks() == []


@pytest.mark.parametrize("name", TASKS)
async def test_one_that_ends_ends_the_body(name: str) -> None:
    server, _ = make_server()

    async def end_it() -> None:
        async with open_engine_services(server, LateExecutor()):
            find_background_task(name).cancel("the test ends it")
            await trio.sleep_forever()

    with pytest.raises(ServiceEnded, match=name):
        await end_it()
    assert find_background_tasks() == []


async def test_what_fails_a_step_fails_the_body() -> None:
    server, _ = make_server()

    async def fail() -> None:
        async with open_engine_services(server, LateExecutor()):
            server.handle_event(PeerUp(FRONTEND, 1))
            server.handle_event(Received(FRONTEND, add()))
            await trio.sleep_forever()

    with pytest.raises(StepTimeout, match="step 1 had no answer"):
        await fail()
    assert find_background_tasks() == []
