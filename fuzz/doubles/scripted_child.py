"""Scripted child: one without a process, which lives on trio's clock as its script says."""

import signal
from collections.abc import Awaitable, Callable, Mapping, Set

import attrs

from ...nurseries.tasks.task_tree import ProcessTree
from ...runtime.launch.child import BecameReady, ChildPlan, Gone, Launched
from ...runtime.launch.child_control import ChildControl
from ...runtime.launch.child_end import STOPPED, ChildEnd, end_of
from ...runtime.launch.signals import SignalTarget


@attrs.define(eq=False)
class ScriptedChild:
    """Child without a process. `script` lives its life, and raises what ends it.

    Nothing takes what is sent to it; signals are written down.
    """

    plan: ChildPlan
    script: Callable[["ScriptedChild"], Awaitable[None]]
    control: ChildControl = attrs.field(init=False)
    is_ready: bool = attrs.field(default=False, init=False)
    signals: list[signal.Signals] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.control = ChildControl(self.plan.name, None)  # type: ignore[arg-type]

    @property
    def epoch(self) -> int:
        """The number of its life."""
        return self.plan.epoch

    def become_ready(self, payload: bytes = b"") -> None:
        """Say READY, with this payload."""
        self.is_ready = True
        self.plan.report(BecameReady(self, payload))

    async def wait_ended(self) -> ChildEnd:
        """Live by the script. Cancellation: it is stopped."""
        self.plan.report(Launched(self))
        end = STOPPED
        try:
            await self.script(self)
            raise AssertionError("a script raises what ends it")
        except Exception as error:
            end = end_of(error)
        finally:
            self.plan.report(Gone(end))
        return end

    def signal(self, number: signal.Signals) -> None:
        """Write the signal down."""
        self.signals.append(number)

    def targets(self) -> Mapping[str, SignalTarget | None]:
        """Name it; there is no pid."""
        return {self.plan.name: None}

    def to_reap(self) -> Set[int]:
        """Nothing is a process."""
        return frozenset()

    def row(self) -> dict[str, object]:
        """Say its epoch."""
        return {"epoch": self.epoch}

    async def tree(self) -> ProcessTree:
        """Say its name."""
        return ProcessTree(self.plan.name, 0)
