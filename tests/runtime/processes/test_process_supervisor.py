"""The books of who boots and who lives, and what the owner of the lives is told, in its order."""

import itertools
import signal
from collections.abc import Sequence

import attrs
import msgspec
import pytest
import trio

from triolet.engine.errors import BootRefused
from triolet.engine.messages import ENGINE_TO_ROOT, ROOT_TO_ENGINE, EngineInit, FrontendMembership
from triolet.nurseries.tasks.supervisor import RestartLimitExceeded
from triolet.runtime.config import RuntimeSettings
from triolet.runtime.events import ignore_event
from triolet.runtime.processes.child_process import ChildLife
from triolet.runtime.processes.process_supervisor import SupervisedLives
from triolet.transports.control.passed_fds import close_fds

from ...leaks import check_no_leaks
from ..acting import ACTING_ENGINE, DEADLINE_S, acting_settings

pytestmark = pytest.mark.slow


@attrs.define(eq=False)
class Owner:
    """Writes down what it is told; kills each of the first `kills` lives when it is READY."""

    settings: RuntimeSettings
    kills: int = 0
    told: list[tuple[str, int]] = attrs.field(factory=list)
    ready: trio.Event = attrs.field(factory=trio.Event)
    processes: SupervisedLives = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.processes = SupervisedLives(
            owner=self,
            role="engine",
            module=ACTING_ENGINE,
            sends=ROOT_TO_ENGINE,
            receives=ENGINE_TO_ROOT,
            settings=self.settings,
            epochs=itertools.count(1),
            on_event=ignore_event,
        )

    def handle_starting(self, rank: int, epoch: int) -> bytes:
        assert self.processes.present() == {}, "nobody is succeeded before he is gone"
        self.told.append(("starting", epoch))
        init = EngineInit(
            run_id="r",
            rank=rank,
            epoch=epoch,
            settings=self.settings.engine,
            membership=FrontendMembership(0, []),
        )
        return msgspec.msgpack.encode(init)

    def handle_ready(self, rank: int, life: ChildLife, payload: bytes) -> None:
        assert self.processes.lives == {rank: life}
        assert self.processes.booting == {}
        self.told.append(("ready", life.epoch))
        if life.epoch <= self.kills:
            life.process.send_signal(signal.SIGKILL)
        else:
            self.ready.set()

    def handle_gone(self, rank: int, cause: str) -> None:
        assert self.processes.present() == {}
        self.told.append((cause, self.told[-1][1]))

    def handle_message(self, rank: int, message: object, fds: Sequence[int]) -> None:
        close_fds(fds)


async def test_it_lives_again_under_the_next_epoch() -> None:
    owner = Owner(acting_settings(["ready"]), kills=1)
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(owner.processes.keep_up, 0)
            await owner.ready.wait()
            nursery.cancel_scope.cancel("enough")
    assert owner.told == [
        ("starting", 1),
        ("ready", 1),
        ("was killed by SIGKILL", 1),
        ("starting", 2),
        ("ready", 2),
        ("was stopped", 2),
    ]


async def test_the_limit_of_restarts_comes_from_the_last_death() -> None:
    owner = Owner(acting_settings(["ready"]), kills=10)
    with (
        check_no_leaks(),
        trio.fail_after(DEADLINE_S),
        pytest.raises(RestartLimitExceeded) as raised,
    ):
        await owner.processes.keep_up(0)
    assert "SIGKILL" in str(raised.value.__cause__)
    assert [epoch for what, epoch in owner.told if what == "ready"] == [1, 2, 3]


async def test_a_refusal_is_not_followed_by_a_restart() -> None:
    owner = Owner(acting_settings(["refuse"]))
    with (
        check_no_leaks(),
        trio.fail_after(DEADLINE_S),
        pytest.raises(RestartLimitExceeded) as raised,
    ):
        await owner.processes.keep_up(0)
    assert isinstance(raised.value.__cause__, BootRefused)
    assert [what for what, _ in owner.told if what == "starting"] == ["starting"]
