"""Rows of the processes under one root, or host, for viewers: what only that knows of each."""

import os
from collections.abc import Callable, Iterable, Iterator

import attrs

from ...nurseries.processes.usage import UsageMeter
from ...nurseries.processes.watched import SIGNALS, Row, now_ms, spare_rows
from ...nurseries.tasks.task_rows import TaskRows
from ..control.calls import EngineState
from ..events import ChildGone, RunEvent
from .process_supervisor import ProcessSupervisor


def root_row(open_streams: int) -> Row:
    """What a root says of itself, beside its tasks."""
    return {
        "parent": None,
        "role": "root",
        "epoch": 0,
        "state": "ready",
        "reason": "",
        "restarts": 0,
        "facts": {"open streams": open_streams},
        "can": [],
    }


@attrs.define(eq=False)
class ServerRows:
    """Rows of this process, of which `own` is said beside its tasks, and of its places.

    `elsewhere` are rows of other machines, whose CPU and memory are not counted here.
    """

    fleets: tuple[ProcessSupervisor, ...]
    own: Callable[[], Row]
    name: str = "root"
    elsewhere: Callable[[], Iterable[Row]] = tuple
    _last_causes: dict[str, str] = attrs.field(factory=dict, init=False)
    # {place: its state, and since when}
    _states: dict[str, tuple[str, int]] = attrs.field(factory=dict, init=False)
    _meter: UsageMeter = attrs.field(factory=UsageMeter, init=False)
    _tasks: TaskRows | None = attrs.field(default=None, init=False)

    def handle_event(self, event: RunEvent) -> None:
        """Remember the latest cause of death of each place."""
        if isinstance(event, ChildGone):
            self._last_causes[event.child] = event.cause

    def begin(self) -> None:
        """Look at the tasks of the run that this is called in, from now on."""
        self._tasks = TaskRows()

    def look(self, now: float) -> Iterator[Row]:
        """Look at all rows as they are now, with CPU and memory."""
        here = self._meter.add_usage(self._rows(), now)
        return map(self._with_since, [*here, *self.elsewhere()])

    def _rows(self) -> Iterator[Row]:
        assert self._tasks is not None, "it runs"
        own = {"place": self.name, "pid": os.getpid(), "tasks": self._tasks.look()}
        yield own | self.own()
        is_root = self.name == "root"
        for fleet in self.fleets:
            for rank in sorted(fleet.places):
                yield self._row(fleet, rank)
            yield from spare_rows(fleet.spares.trees(), "" if is_root else self.name)

    def _row(self, fleet: ProcessSupervisor, rank: int) -> Row:
        place, child, is_booting = f"{fleet.role} {rank}", fleet.present().get(rank), False
        restarts = fleet.places[rank].restarts
        state, reason = fleet.place(rank).state.value, fleet.failed.get(rank, "")
        if child is None and not reason:
            state, reason = EngineState.RESTARTING.value, self._last_causes.get(place, "")
        elif child is not None and not child.is_ready:
            is_booting = True
            state = (EngineState.RESTARTING if restarts else EngineState.STARTING).value
        row = {
            "place": place,
            "parent": self.name,
            "role": fleet.role,
            "pid": 0,
            "epoch": 0,
            "state": state,
            "reason": reason,
            "restarts": restarts,
            "can": [] if child is None else SIGNALS,
        }
        row |= {} if child is None else child.row()
        # A process that cannot speak yet has no tasks; those of the process before it are gone.
        return row | ({"facts": {}, "tasks": []} if is_booting or child is None else {})

    def _with_since(self, row: Row) -> Row:
        place, state = row["place"], row.get("state")
        if state is None or "since" in row:  # another one says it
            return row
        if self._states.get(place, ("", 0))[0] != state:
            self._states[place] = state, now_ms()
        return row | {"since": self._states[place][1]}
