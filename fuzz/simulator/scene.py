"""What a simulation is made of, for those who run clients, bring faults and judge.

The root is the real one without its listening socket and run folder; processes, network and kernel
are simulated. Virtual time passes when nobody can run.
"""

import hashlib
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from random import Random

import attrs
import trio

from ...engine.config import EngineSettings
from ...engine.errors import StepFailed, StepTimeout
from ...engine.step_messages import WorkerReady
from ...nurseries.processes.process_exit import ProcessDied
from ...nurseries.tasks.changes import Changes
from ...runtime.config import ReplaySettings, RuntimeSettings, StreamSettings, SupervisionSettings
from ...runtime.continuity.held_connections import HeldConnections
from ...runtime.events import ChildFailed, ChildHung, ChildReady, ChildStarting
from ...runtime.fleet.engine_fleet import EngineFleet
from ...runtime.fleet.root import Root, ServePlan
from ...runtime.frontend.adoption import AdoptedStream
from ...runtime.frontend.frontend import Frontend
from ...runtime.journal.records import rebuilding_word
from ...runtime.journal.writer import JournalLimits
from ...runtime.text.input_processor import InputProcessor
from ...transports.links.channel import Peer
from .hosts.machines import SimHosts
from .kernel import STOPPED_S, SimKernel, SimProcess
from .network import SimNetwork, make_network
from .plan import RESTARTS_MAX, Event, Fault, Request, Setup
from .processes import ENGINE, FORMS, FRONTEND, EngineParts, FrontendParts, Programs
from .responses import Forgotten
from .streams import Model, StreamHistory, Violation
from .takeover.connections import SimConnections
from .takeover.plan import Death, Talk
from .worker import SimExecutor

BLOCK_TOKENS = 4
# An adoption makes one store for each stream, and some more.
AMBUSH_STORES = 12
# What one stream may cost.
REBUILD_DEATHS_MAX = 2
# What may end a simulated process.
_EXPLAINED = (ProcessDied, StepFailed, StepTimeout, trio.EndOfChannel, trio.BrokenResourceError)


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
    make_engines: Callable[..., EngineFleet]
    trace: Trace = attrs.field(factory=Trace)
    setup: Setup = attrs.field(init=False)
    requests: list[Request] = attrs.field(init=False)
    faults: list[Fault] = attrs.field(init=False)
    talks: list[Talk] = attrs.field(init=False)
    # Connections of clients, if there are some.
    connections: SimConnections | None = attrs.field(default=None, init=False)
    settings: RuntimeSettings = attrs.field(init=False)
    network: SimNetwork = attrs.field(init=False)
    kernel: SimKernel = attrs.field(init=False)
    root: Root = attrs.field(init=False)
    # Other machines, if there are some.
    hosts: SimHosts | None = attrs.field(default=None, init=False)
    reached: Counter[str] = attrs.field(factory=Counter, init=False)
    histories: list[StreamHistory] = attrs.field(factory=list, init=False)
    # {client: all that came on its connection}
    said: dict[str, list[str]] = attrs.field(factory=dict, init=False)
    # Engines that were ready, and when.
    ready: list[tuple[SimProcess, float]] = attrs.field(factory=list, init=False)
    # Tokens that clients have, and who waits for how many.
    tokens: int = attrs.field(default=0, init=False)
    progress: list[tuple[int, trio.Event]] = attrs.field(factory=list, init=False)
    # The first invariant that was seen to be broken in a task of the root.
    broken: str = attrs.field(default="", init=False)
    breaks: trio.Event = attrs.field(factory=trio.Event, init=False)
    frontend_up: Changes = attrs.field(factory=Changes, init=False)
    # {home: the process that has it}
    frontends: dict[int, SimProcess] = attrs.field(factory=dict, init=False)
    # {frontend rank: what kills its next life, when it has made so many stores, and how}
    ambushes: dict[int, Fault] = attrs.field(factory=dict, init=False)
    forgotten: Forgotten = attrs.field(factory=Forgotten, init=False)
    # {seed of a request: choices that may go on, of lives that died before their client had them}
    unseen: Counter[int] = attrs.field(factory=Counter, init=False)
    # {seed of a request: engines that were killed for it}, and {name: frontends}
    killed_by: Counter[int | str] = attrs.field(factory=Counter, init=False)
    _epochs: dict[tuple[str, int], int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        events = list(self.events)
        self.setup = next((each for each in events if isinstance(each, Setup)), Setup())
        self.requests = [each for each in events if isinstance(each, Request)]
        self.faults = [each for each in events if isinstance(each, Fault)]
        self.talks = [each for each in events if isinstance(each, Talk)]
        setup = self.setup
        if self.talks:
            deaths = [each for each in events if isinstance(each, Death)]
            self.connections = SimConnections(setup.slots, deaths, self.fail, self._crash)
        self.settings = _settings_of(setup, self.folder)
        note = self.trace.note
        chance = Random(f"network {setup.seed}")
        self.network = make_network(chance, note, is_apart=setup.is_apart)
        self.network.is_over = self.is_over
        self.kernel = SimKernel(
            self._programs().mains(),
            Random(f"kernel {setup.seed}"),
            note,
            hanging=setup.hanging,
            explained=_EXPLAINED,
        )
        plan = ServePlan(
            settings=self.settings,
            frontend_settings="",
            version="",
            engine_module=ENGINE,
            frontend_module=FRONTEND,
            forms_module=FORMS,
        )
        clients = self.connections
        self.root = Root(
            plan,
            self._handle_event,
            run_id="simulated",
            kernel=self.kernel,
            make_engines=self.make_engines,
            chance=Random(f"root {setup.seed}"),
            held=HeldConnections() if clients is None else clients.hold(self.network),
        )
        # A frontend comes back, however often it dies.
        supervision = attrs.evolve(self.settings.supervision, restart_limit=0)
        settings = attrs.evolve(self.settings, supervision=supervision)
        frontends = self.root.frontends.processes
        frontends.parts = attrs.evolve(frontends.parts, settings=settings)
        if setup.hosts:
            self.hosts = SimHosts(
                *(setup, self.settings, self.root, self.kernel, self.network),
                note=note,
                fail=self.fail,
                reach=lambda what: self.reached.update([what]),
            )

    def engine_ranks(self) -> list[int]:
        """Ranks of all engines, on whichever machine."""
        fleets = [self.root.engines, *(self.hosts.fleets() if self.hosts is not None else ())]
        return sorted(rank for fleet in fleets for rank in fleet.processes.places)

    def _programs(self) -> Programs:
        return Programs(
            network=self.network,
            settings=self.settings,
            inputs=self.inputs,
            chance=Random(f"programs {self.setup.seed}"),
            worker_ready=self.worker_ready,
            family=self.family,
            fatal={e.seed: e.fatal_at for e in self.requests if e.fatal_at is not None},
            on_fatal=self._handle_fatal,
            prepare=self._prepare,
            limits=JournalLimits(clean_above_bytes=self.setup.journal_bytes, turn_bytes=512),
            on_boot=self._handle_boot,
            on_adopted=self._judge_adopted,
            on_up=self._note_frontend,
            on_rebuilding=self._handle_rebuilding,
            forgotten=self.forgotten,
            connections=self.connections,
        )

    @property
    def model(self) -> Model:
        """For the oracle; the longest request is one that every engine takes."""
        inputs = self.inputs
        model_len = min(inputs.max_model_len, self.setup.kv_blocks * BLOCK_TOKENS)
        families = 1 + (self.setup.unlike_from < self.setup.engines)
        decode = inputs.tokenizer.decode
        return Model(model_len, inputs.vocab_size, inputs.eos_token_ids, families, decode)

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

    @property
    def has_forms(self) -> bool:
        """Whether a client asks for an answer of a given form."""
        return any(each.form is not None for each in self.requests)

    def is_over(self, receiver: Peer, sender: Peer) -> bool:
        """Whether the receiver knows that this life of the sender is over."""
        if receiver.role == "engine":
            return self._is_frontend_over(receiver, sender)
        hub, engine = receiver, sender
        process = self.frontends.get(hub.rank)
        if process is None:
            return False
        assert isinstance(process.parts, FrontendParts)
        client = process.parts.client
        if hub != Peer("frontend", hub.rank, client.ledger.term):
            return False
        return any(
            each.rank == engine.rank and each.epoch > engine.epoch
            for each in client.engines.membership.engines
        )

    def _is_frontend_over(self, spoke: Peer, frontend: Peer) -> bool:
        if frontend not in self.network.dead:
            return False
        process = self.present("engine", spoke.rank)
        if process is None or process.epoch != spoke.epoch:
            return False
        parts = process.parts
        return isinstance(parts, EngineParts) and parts.knows_later(frontend)

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
            executor.fail("hang" if request.hangs else "crash")
            return
        self.kernel.kill(executor.process)
        self.killed_by[seed] += 1
        lives = 1 + sum(each.lives for each in self.histories if each.request is request)
        if self.killed_by[seed] > lives * self.settings.replay.replay_attempts_max:
            self.fail(f"{request.name} has ended {self.killed_by[seed]} engines")

    def _prepare(self, frontend: Frontend) -> None:
        frontend.client.clock_ns = lambda: int(trio.current_time() * 1e9)

    def _handle_boot(self, process: SimProcess) -> None:
        """A life of a frontend begins; it may not come to its end of adoption."""
        if self.connections is not None:
            self.connections.handle_boot(process, is_first=not self.frontends)
        fault = self.ambushes.pop(process.rank, None)
        if fault is None:
            return

        def die() -> None:
            self.reached["crash"] += 1
            self.reached["adopter killed"] += 1
            self.kernel.kill(process)

        process.stores.plan_death(fault.steps % AMBUSH_STORES, die, is_torn=fault.is_torn)

    def _crash(self, process: SimProcess, *, is_torn: bool = False) -> None:
        self.reached["crash"] += 1
        self.reached["crash within a store"] += is_torn
        self.kernel.kill(process, signal.SIGSEGV)

    def _handle_rebuilding(self, process: SimProcess, word: int) -> None:
        """A frontend's journal says that this stream is being rebuilt."""
        for history in self.histories:
            name, term = history.name, word >> 32
            if not history.request.ends_adopters or rebuilding_word(term, name) != word:
                continue
            if self.frontends.get(history.request.frontend) is process or not process.is_alive:
                continue
            self.killed_by[name] += 1
            self.reached["adopter crashed by a stream"] += 1
            if self.killed_by[name] > REBUILD_DEATHS_MAX:
                self.fail(f"{name} has ended {self.killed_by[name]} frontends that adopted it")
            self.kernel.kill(process, signal.SIGSEGV)

    def _judge_adopted(self, process: SimProcess, adopted: list[AdoptedStream]) -> None:
        """All that clients have seen of what they may come back to must be there again."""
        streams = {stream.name: stream for stream in adopted}
        self.trace.note(f"{process} adopts {', '.join(streams)}")
        self.reached["adopted"] += len(streams)
        assert isinstance(process.parts, FrontendParts)
        process.parts.client.ledger.check_invariants()
        self.forgotten.handle_adopted(process.rank, streams)
        if again := sorted(self.forgotten.names & streams.keys()):
            self.fail(f"{', '.join(again)} was forgotten, and comes again")
        for history in self.histories:
            stream = streams.get(history.name)
            if history.request.frontend != process.rank or history.name in self.forgotten.names:
                continue
            if not history.request.is_resumable and history.end != "finished":
                generation = None if stream is None else stream.generation
                if generation is not None and not generation.has_end:
                    self.fail(f"{history.name} goes on, and cannot be resumed")
            elif not history.end:
                self._judge_kept(history, stream)
            elif history.end == "finished" and stream is not None and stream.said is None:
                self.fail(f"{history.name} has ended, and its journal does not say so")

    def _judge_kept(self, history: StreamHistory, stream: AdoptedStream | None) -> None:
        if stream is None:
            self.fail(f"{history.name} is not in the journal")
        elif stream.generation is not None:
            for index, taken in enumerate(history.taken):
                kept = stream.generation.choices[index]._written
                if kept[: len(taken)] != taken:
                    what = f"{taken} of choice {index}, and its journal has {kept}"
                    self.fail(f"{history.name} was offered {what}")

    def _note_frontend(self, process: SimProcess) -> None:
        self.frontends[process.rank] = process
        self.frontend_up.notify()

    def _handle_event(self, event: object) -> None:
        self.trace.note(f"event {event}")
        if isinstance(event, ChildReady):
            place = _place_of(event.child)
            if event.epoch <= self._epochs.get(place, 0):
                self.fail(f"{event.child} came with epoch {event.epoch} again")
            self._epochs[place] = event.epoch
            process = self.present(*place)
            if process is not None:
                process.watched_at = trio.current_time()
                if process.role == "engine":
                    self.ready.append((process, trio.current_time()))
                elif process.role == "frontend" and self.connections is not None:
                    self.connections.handle_ready(process)
        elif isinstance(event, ChildHung):
            place = _place_of(event.child)
            process = self.present(*place)
            is_stopped = process is not None and process.has_stopped_for(STOPPED_S)
            if not is_stopped and place not in self.kernel.lingering():
                self.fail(f"{event.child} was killed, and had not stopped")
            self.reached["stop noticed"] += 1
        elif isinstance(event, ChildFailed) and "hangs in the kernel" in event.cause:
            self.reached["outlived its kill"] += 1
        elif isinstance(event, ChildStarting) and (
            _place_of(event.child) in self.kernel.lingering()
        ):
            self.fail(f"{event.child} begins beside one that hangs in the kernel")

    def fail(self, what: str) -> None:
        """An invariant is broken, seen where the runtime would take an error for its own."""
        self.trace.note(f"violation {what}")
        if not self.broken:
            self.broken = what
            self.breaks.set()

    def close(self) -> None:
        """Close what is open when the simulation is over."""
        self.kernel.close()
        if self.connections is not None:
            self.connections.sockets.close()

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
        supervision=SupervisionSettings(restart_limit=RESTARTS_MAX, backoff_max_s=1.0),
    )


def _place_of(child: str) -> tuple[str, int]:
    """Role and rank of "engine 0", say."""
    role, _, rank = child.partition(" ")
    return role, int(rank)
