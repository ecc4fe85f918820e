"""What a simulation is made of, for those who run clients, bring faults and judge.

The root is the real one without its listening socket and run folder; processes, network and kernel
are simulated. Virtual time passes when nobody can run.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from random import Random

import attrs
import trio

from ...engine.config import EngineSettings
from ...engine.errors import StepFailed, StepTimeout
from ...engine.step_messages import WorkerReady
from ...nurseries.processes.process import ProcessDied
from ...runtime.config import (
    ReplaySettings,
    RuntimeSettings,
    StreamSettings,
    SupervisionSettings,
)
from ...runtime.events import ChildHung, ChildReady
from ...runtime.frontend.frontend import Frontend
from ...runtime.processes.root import Root, ServePlan
from ...runtime.text.input_processor import InputProcessor
from ...transports.links.channel import Peer
from .kernel import STOPPED_S, SimKernel, SimProcess
from .network import SimNetwork, make_network
from .plan import Event, Fault, Request, Setup
from .processes import ENGINE, FRONTEND, FrontendParts, Programs
from .streams import Model, StreamHistory, Violation
from .worker import SimExecutor

BLOCK_TOKENS = 4


@attrs.define(eq=False)
class Trace:
    """Everything that happened, in order, as a hash; `lines` if they are kept."""

    lines: list[str] | None = None
    _hash: "hashlib._Hash" = attrs.field(factory=hashlib.sha256, init=False)

    def note(self, text: str) -> None:
        """One event, with the virtual time."""
        line = f"{trio.current_time():.6f} {text}\n"
        self._hash.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def digest(self) -> str:
        """Equal if everything was."""
        return self._hash.hexdigest()[:16]


@attrs.define(eq=False)
class Scene:
    """One simulation of these events, and what has happened in it so far."""

    events: Iterable[Event]
    inputs: InputProcessor
    folder: str
    trace: Trace = attrs.field(factory=Trace)
    setup: Setup = attrs.field(init=False)
    requests: list[Request] = attrs.field(init=False)
    faults: list[Fault] = attrs.field(init=False)
    settings: RuntimeSettings = attrs.field(init=False)
    network: SimNetwork = attrs.field(init=False)
    kernel: SimKernel = attrs.field(init=False)
    root: Root = attrs.field(init=False)
    reached: Counter[str] = attrs.field(factory=Counter, init=False)
    histories: list[StreamHistory] = attrs.field(factory=list, init=False)
    # Engines that were ready, and when.
    ready: list[tuple[SimProcess, float]] = attrs.field(factory=list, init=False)
    # Tokens that clients have, and who waits for how many.
    tokens: int = attrs.field(default=0, init=False)
    progress: list[tuple[int, trio.Event]] = attrs.field(factory=list, init=False)
    # The first invariant that was seen to be broken in a task of the root.
    broken: str = attrs.field(default="", init=False)
    breaks: trio.Event = attrs.field(factory=trio.Event, init=False)
    frontend_up: trio.Event = attrs.field(factory=trio.Event, init=False)
    frontends: dict[int, SimProcess] = attrs.field(factory=dict, init=False)
    # {seed of a request: engines that were killed for it}
    _killed_by: Counter[int] = attrs.field(factory=Counter, init=False)
    _epochs: dict[tuple[str, int], int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        events = list(self.events)
        self.setup = next((each for each in events if isinstance(each, Setup)), Setup())
        self.requests = [each for each in events if isinstance(each, Request)]
        self.faults = [each for each in events if isinstance(each, Fault)]
        setup = self.setup
        self.settings = _settings_of(setup, self.folder)
        note = self.trace.note
        self.network = make_network(Random(f"network {setup.seed}"), note)
        self.network.is_over = self.is_over
        programs = Programs(
            network=self.network,
            settings=self.settings,
            inputs=self.inputs,
            chance=Random(f"programs {setup.seed}"),
            worker_ready=self.worker_ready,
            family=self.family,
            fatal={e.seed: e.fatal_at for e in self.requests if e.fatal_at is not None},
            on_fatal=self._handle_fatal,
            prepare=self._prepare,
            on_up=self._note_frontend,
        )
        self.kernel = SimKernel(
            programs.mains(),
            Random(f"kernel {setup.seed}"),
            note,
            explained=(
                ProcessDied,
                StepFailed,
                StepTimeout,
                trio.EndOfChannel,
                trio.BrokenResourceError,
            ),
        )
        plan = ServePlan(
            settings=self.settings,
            frontend_settings="",
            version="",
            engine_module=ENGINE,
            frontend_module=FRONTEND,
        )
        self.root = Root(
            plan,
            self._handle_event,
            run_id="simulated",
            kernel=self.kernel,
            chance=Random(f"root {setup.seed}"),
        )

    @property
    def model(self) -> Model:
        """For the oracle; the longest request is one that every engine takes."""
        inputs = self.inputs
        model_len = min(inputs.max_model_len, self.setup.kv_blocks * BLOCK_TOKENS)
        families = 1 + (self.setup.unlike_from < self.setup.engines)
        return Model(model_len, inputs.vocab_size, inputs.eos_token_ids, families)

    def family(self, rank: int) -> int:
        """Which numerics id, and so which tokens, this engine has."""
        return int(rank >= self.setup.unlike_from)

    def present(self, role: str, rank: int) -> SimProcess | None:
        """The living process of this rank, which may boot."""
        found = [
            p for p in self.kernel.processes if p.is_alive and (p.role, p.rank) == (role, rank)
        ]
        if len(found) > 1:
            raise Violation(f"{role} {rank} is there {len(found)} times")
        return found[0] if found else None

    def is_over(self, hub: Peer, engine: Peer) -> bool:
        """Whether this frontend has been told that this life of an engine is over."""
        process = self.frontends.get(hub.rank)
        if process is None:
            return False
        parts = process.parts
        assert isinstance(parts, FrontendParts)
        if hub != Peer("frontend", hub.rank, parts.client.ledger.term):
            return False
        return any(
            each.rank == engine.rank and each.epoch > engine.epoch
            for each in parts.client.engines.membership.engines
        )

    # ---- what processes are made of

    def worker_ready(self, rank: int) -> WorkerReady:
        return WorkerReady(
            kv_blocks=self.setup.kv_blocks,
            max_model_len=self.inputs.max_model_len,
            vocab_size=self.inputs.vocab_size,
            numerics_id=f"simulated {self.family(rank)}",
            bitwise=True,
        )

    def _handle_fatal(self, executor: SimExecutor, seed: int) -> None:
        request = next(each for each in self.requests if each.seed == seed)
        if request.is_poison:
            executor.crashed_by = seed
            executor.fail("crash")
            return
        self.kernel.kill(executor.process)
        self._killed_by[seed] += 1
        lives = 1 + sum(each.request is request for each in self.histories)
        if self._killed_by[seed] > lives * self.settings.replay.replay_attempts_max:
            self.fail(f"{request.name} has ended {self._killed_by[seed]} engines")

    def _prepare(self, frontend: Frontend) -> None:
        frontend.client.clock_ns = lambda: int(trio.current_time() * 1e9)

    def _note_frontend(self, process: SimProcess) -> None:
        self.frontends[process.rank] = process
        self.frontend_up.set()
        self.frontend_up = trio.Event()

    def _handle_event(self, event: object) -> None:
        self.trace.note(f"event {event}")
        if isinstance(event, ChildReady):
            role, _, rank = event.child.partition(" ")
            key = (role, int(rank))
            if event.epoch <= self._epochs.get(key, 0):
                self.fail(f"{event.child} came with epoch {event.epoch} again")
            self._epochs[key] = event.epoch
            process = self.present(role, int(rank))
            if process is not None:
                process.watched_at = trio.current_time()
                if role == "engine":
                    self.ready.append((process, trio.current_time()))
        elif isinstance(event, ChildHung):
            role, _, rank = event.child.partition(" ")
            process = self.present(role, int(rank))
            if process is None or not process.has_stopped_for(STOPPED_S):
                self.fail(f"{event.child} was killed, and had not stopped")
            self.reached["stop noticed"] += 1

    def fail(self, what: str) -> None:
        """An invariant is broken, seen where the runtime would take an error for its own."""
        self.trace.note(f"violation {what}")
        if not self.broken:
            self.broken = what
            self.breaks.set()

    def note_tokens(self, count: int) -> None:
        self.tokens += count
        for tokens, has_come in self.progress:
            if tokens <= self.tokens:
                has_come.set()


def _settings_of(setup: Setup, folder: str) -> RuntimeSettings:
    return RuntimeSettings(
        engine=EngineSettings(
            model=folder,
            executor="null",
            block_tokens=BLOCK_TOKENS,
            max_num_seqs=setup.max_num_seqs,
            max_num_batched_tokens=16,
            step_timeout_s=2.0,
            orphan_s=60.0,  # a lost abort must not be put right by time
        ),
        engines=setup.engines,
        frontends=setup.frontends,
        spare_engines=setup.spare_engines,
        spare_frontends=setup.spare_frontends,
        streams=StreamSettings(window_tokens=setup.window_tokens),
        replay=ReplaySettings(replay_wait_s=setup.replay_wait_s),
        supervision=SupervisionSettings(restart_limit=1000, backoff_max_s=1.0),
    )
