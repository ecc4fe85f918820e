"""Oracle of blame: whom an engine's death makes a suspect, who is cleared again, who is refused.

Knows which rows the workers had and which request was fatal to them; of the runtime it sees the
fleet's two tables, and what it calls a request there.
"""

import signal
from collections.abc import Callable

import attrs
import trio

from ...engine.batch_table import content_hash, read_batches
from ...engine.messages import AddRequest
from ...engine.sampling_params import SamplingParams
from ...nurseries.processes.boot import EXIT_STOPPED
from ...runtime.fleet.engine_fleet import EngineFleet
from ...runtime.launch.child import Suspected
from .kernel import SimProcess
from .plan import Request
from .processes import ENGINE, EngineParts
from .scene import Scene
from .worker import SimExecutor


@attrs.define(eq=False)
class _Account:
    """Of all requests with one prompt."""

    requests: list[Request]
    # Deaths of engines that had one, by a fault of their own; of these, those that no other request
    # can have made, and those that one of these did.
    faults: int = 0
    alone: int = 0
    made: int = 0
    # How many tokens one had in each of these deaths.
    places: list[int] = attrs.field(factory=list)
    # When the last of them was, and whether one was in flight then.
    last_at: float = 0.0
    was_in_flight: bool = False

    @property
    def may_be_refused(self) -> bool:
        """Two deaths, one of them alone; or three at one place, give or take a step in flight."""
        is_one_place = any(
            sum(abs(one - other) <= 1 for other in self.places) >= 3 for one in self.places
        )
        return is_one_place or (self.faults >= 2 and self.alone > 0)


@attrs.define(eq=False)
class Blame:
    """Of one simulation."""

    scene: Scene
    # By what the runtime calls their content.
    _accounts: dict[bytes, _Account] = attrs.field(factory=dict, init=False)
    _contents: dict[int, bytes] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        for request in self.scene.requests:
            content = content_hash(
                AddRequest(
                    request_id="",
                    attempt=0,
                    prompt_token_ids=request.prompt,
                    sampling=SamplingParams(),
                    eos_token_ids=[],
                )
            )
            self._contents[request.seed] = content
            self._accounts.setdefault(content, _Account([])).requests.append(request)
        fleet = self.scene.root.engines
        assert isinstance(fleet, WatchedFleet)
        fleet.on_blamed = self.handle_fault

    # ---- a death that may be a step's fault

    def handle_fault(
        self, rank: int, blamed: set[bytes], refused: set[bytes], places: dict[bytes, int]
    ) -> None:
        """The fleet has blamed these for the end of an engine, and refuses some from now on."""
        engines = [p for p in self.scene.kernel.processes if (p.module, p.rank) == (ENGINE, rank)]
        process = engines[-1]
        executor = _executor_of(process)
        if self.scene.kernel.unexplained:
            return  # judged at the end
        if not _is_at_fault(process, executor):
            self.scene.fail(f"requests are suspected of the death of {process}, which was killed")
        if executor is None:
            return
        in_flight = {self._contents[seed] for seed in executor.in_flight()}
        seeds = executor.lost | (executor.answered if process.stores.is_fatal else set())
        had = in_flight | {self._contents[seed] for seed in seeds} | _live(process)
        if missing := in_flight - blamed - self._fleet.quarantine.refused.keys():
            self.scene.fail(f"{process} died, and {self._names(missing)} is not suspected of it")
        if not blamed <= had:
            self.scene.fail(f"{process} died, and had no {self._names(blamed - had)}")
        for content in had:
            account = self._accounts[content]
            account.faults += 1
            if content in places:
                account.places.append(places[content])
            account.alone += in_flight <= {content}
            account.last_at, account.was_in_flight = trio.current_time(), content in in_flight
        # One that an order has ended was ended by nothing else, whatever its worker died of.
        if executor.crashed_by is not None and process.exit != (EXIT_STOPPED, None):
            self._accounts[self._contents[executor.crashed_by]].made += 1
            self.scene.reached["death by poison"] += 1
        self._judge_refused(refused)
        self.scene.reached["suspected"] += len(blamed)
        self.scene.trace.note(f"{process} died of a step: {self._names(blamed)}")

    def _judge_refused(self, refused: set[bytes]) -> None:
        for content in refused:
            if not self._accounts[content].may_be_refused:
                self.scene.fail(f"{self._names({content})} is refused, and may be innocent")
        self.scene.reached["refused"] += len(refused)
        for content, account in self._accounts.items():
            # What was asked for again by a client whose frontend died may run twice at a time.
            lives = self._lives(account)
            is_refused = content in self._fleet.quarantine.refused
            # One that has outlived a death that it did not make may make one more.
            allowed = lives + is_refused + (account.faults > account.made)
            if account.made > allowed:
                what = f"has ended {account.made} engines, and is {'' if is_refused else 'not '}"
                self.scene.fail(f"{self._names({content})} {what}refused")

    # ---- at the end

    def unsettled(self) -> str:
        """Who ought not to be suspected any more, or was refused by nobody; "" if all is well."""
        quarantine = self._fleet.quarantine
        for content, suspect in quarantine.suspects.items():
            account = self._accounts[content]
            if not (suspect.position and account.was_in_flight and self._lives(account) == 1):
                continue
            for process in self.scene.kernel.processes:
                executor = _executor_of(process) if process.is_alive else None
                if executor is None:
                    continue
                for request in account.requests:
                    taken_at, position = executor.passed.get(request.seed, (0.0, 0))
                    if taken_at >= account.last_at and position >= suspect.position:
                        return f"{request.name} has passed and is a suspect still"
        for history in self.scene.histories:
            if history.end == "refused":
                content = self._contents[history.request.seed]
                if content not in quarantine.refused:
                    return f"{history.request.name} was refused by nobody"
        return ""

    @property
    def _fleet(self) -> EngineFleet:
        return self.scene.root.engines

    def _lives(self, account: _Account) -> int:
        seeds = {request.seed for request in account.requests}
        found = [each for each in self.scene.histories if each.request.seed in seeds]
        seen = sum(each.request.n * each.lives for each in found)
        return seen + sum(self.scene.unseen[seed] for seed in seeds)

    def _names(self, contents: set[bytes]) -> str:
        return ", ".join(
            sorted(each.name for one in contents for each in self._accounts[one].requests)
        )


@attrs.define(eq=False)
class WatchedFleet(EngineFleet):
    """In the place of `EngineFleet`: another hears whom it blames for what it is told of."""

    on_blamed: Callable[[int, set[bytes], set[bytes], dict[bytes, int]], None] = attrs.field(
        default=lambda *_: None, init=False
    )

    def blame(self, rank: int, event: Suspected) -> None:
        suspects, refused = self.quarantine.suspects, set(self.quarantine.refused)
        before = dict(suspects)
        super().blame(rank, event)
        new = set(self.quarantine.refused) - refused
        after = self.quarantine.suspects.items()
        changed = {content for content, suspect in after if before.get(content) is not suspect}
        batches = read_batches(event.table, self.settings.engine.max_num_seqs)
        places = {row.content: row.position for batch in batches for row in batch}
        self.on_blamed(rank, changed | new, new, places)


def _executor_of(process: SimProcess) -> SimExecutor | None:
    parts = process.parts
    return parts.executor if isinstance(parts, EngineParts) else None


def _is_at_fault(process: SimProcess, executor: SimExecutor | None) -> bool:
    """Whether its end can be the fault of what it computed."""
    if executor is None:
        return False
    return executor.is_failing or process.exit == (None, int(signal.SIGSEGV))


def _live(process: SimProcess) -> set[bytes]:
    """The contents of all that an engine had: a step that is written down is not begun yet."""
    parts = process.parts
    core = parts.core if isinstance(parts, EngineParts) else None
    if core is None:
        return set()
    return {each.content for live in core._store._live.values() for each in live.values()}
