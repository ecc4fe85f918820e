"""Application state that all connections of a frontend share: model, settings, responses, drain.

Connections ask it who a client is and whether work is taken, and say when they come and go.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import msgspec
import trio

from ..nurseries.tasks.background import waiting_for
from ..nurseries.tasks.changes import Changes
from ..runtime.frontend.adoption import AdoptedStream
from ..runtime.frontend.generation import Generator
from ..runtime.hands import Hands
from ..runtime.journal.journal import Journal
from ..runtime.messages import ForeignCall, ForeignVerb
from ..runtime.text.answer_format import AnswerFormat
from ..transports.takeover.tcp import SOCKET_CALLS, SocketCalls
from .access_log import AccessLog
from .completions.order import SURFACE as COMPLETIONS
from .completions.order import is_completion
from .completions.service import CompletionService
from .connection_shares import LOCAL, MemoryBudget
from .counters import ApiCounters
from .errors import draining
from .http.access import Authentication, OriginPolicy, authorization_of
from .http.connection import HttpConnection
from .http.held import NO_SLOT, HeldSlots
from .http.keep_alive import KeepAlive
from .http.stream import BoundedStream
from .metrics import Metrics
from .openai.fields.option_fields import RANK_HEADER_NAME, ranked
from .openai.response_id import IdSource
from .responses.service import ResponseService
from .root_calls import RootCalls
from .schema.fields import JsonObject
from .schema.tables import Body, UnknownFields
from .settings import ServeSettings
from .streams.books import StreamBooks
from .streams.claims import ClaimCall
from .streams.foreign import ForeignStreams
from .streams.keyed import KeyedRequests
from .streams.service import Streams
from .totals import Totals
from .viewers import Viewers

# Between two looks at whether all connections are held.
HELD_LOOK_S = 0.02
# After the grace, for closing handshakes; a clean end on loopback takes milliseconds.
CLOSE_S = 1.0
DRAIN_REASON = "the server is draining"

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class Application:
    """Application of a frontend process. Unusable settings raise `ValueError`."""

    generator: Generator
    settings: ServeSettings = attrs.field(factory=ServeSettings)
    # Streams of the other frontends of this server; none by default.
    foreign: ForeignStreams = attrs.field(factory=ForeignStreams)
    # Calls to the root; answered 503 when there is none.
    root: RootCalls = attrs.field(factory=RootCalls)
    # Viewers of the server by this frontend.
    viewers: Viewers = attrs.field(factory=Viewers)
    # Journal for a successor of this frontend; None: it finds nothing.
    journal: Journal | None = None
    # Why there is none, though there should be one.
    journal_fault: str = ""
    # Slots in which connections are held for a successor; None: they end with this process.
    slots: HeldSlots | None = None
    calls: SocketCalls = SOCKET_CALLS
    # Names contents while they are parsed, for the case that this process dies of one.
    hands: Hands = attrs.field(factory=Hands)
    # Notified when a connection or a request came or went, or a count may have changed.
    changes: Changes = attrs.field(factory=Changes)
    # {rank: why} of this server's frontends that are given up.
    failed_frontends: dict[int, str] = attrs.field(factory=dict, init=False)
    authentication: Authentication = attrs.field(init=False)
    origins: OriginPolicy = attrs.field(init=False)
    books: StreamBooks = attrs.field(init=False)
    streams: Streams = attrs.field(init=False)
    inputs: MemoryBudget = attrs.field(init=False)
    ids: IdSource = attrs.field(init=False)
    responses: ResponseService = attrs.field(init=False)
    keyed: KeyedRequests = attrs.field(init=False)
    completions: CompletionService = attrs.field(init=False)
    counters: ApiCounters = attrs.field(factory=ApiCounters, init=False)
    # The counters of all frontends of this server, with ours.
    totals: Totals = attrs.field(init=False)
    metrics: Metrics = attrs.field(init=False)
    keep_alive: KeepAlive = attrs.field(init=False)
    access_log: AccessLog = attrs.field(init=False)
    unknown_fields: UnknownFields = attrs.field(init=False)
    # In which the model answers: reasoning, calls of tools, text.
    answer_format: AnswerFormat = attrs.field(init=False)

    # When requests in flight are cut, by trio's clock; set once the drain has begun. Those of one
    # that hands over are not cut here: its process is ended then.
    drain_deadline: float | None = attrs.field(default=None, init=False)
    hands_over: bool = attrs.field(default=False, init=False)
    _drain_begun: trio.Event = attrs.field(factory=trio.Event, init=False)
    # Scopes of connections, by which a drain ends those that outstay the grace; with their streams,
    # where they may be held.
    _connections: dict[trio.CancelScope, BoundedStream | None] = attrs.field(
        factory=dict, init=False
    )
    # Why connections were not held, as far as it was logged.
    _unheld_reasons: set[str] = attrs.field(factory=set, init=False)
    # {client's address: open connections}, none of 0, so that one cannot take all there may be.
    _by_address: Counter[str] = attrs.field(factory=Counter, init=False)
    # Connections that wait for a next request: a drain ends them at once.
    _idle: set[trio.CancelScope] = attrs.field(factory=set, init=False)
    # A connection or a response has ended.
    _changed: Changes = attrs.field(factory=Changes, init=False)

    def __attrs_post_init__(self) -> None:
        settings = self.settings
        info = self.generator.tokenizer_info()
        self.answer_format = AnswerFormat.of(info, settings.reasoning_parser)
        self.authentication = Authentication.of_keys(settings.api_keys, settings.admin_keys)
        self.origins = OriginPolicy.of(settings.allowed_hosts, settings.allowed_origins)
        self.inputs = MemoryBudget(settings.limits.input_bytes_max)
        self.ids = IdSource(self.foreign.rank)
        epoch = self.foreign.epoch
        self.books = StreamBooks(settings.limits, self._note_change, self.journal, epoch)
        self.foreign.carry_out = self.carry_out
        self.keyed = KeyedRequests(self.foreign)
        self.streams = Streams(
            self.generator,
            settings,
            self.books,
            self.foreign,
            self.ids,
            self.check_accepting,
            self.answer_format,
        )
        self.responses = ResponseService(self.streams)
        self.completions = CompletionService(self.streams)
        self.totals = Totals(self.generator, self.counters, self.changes)
        self.metrics = Metrics(self.generator, self.totals, settings.vllm_metrics)
        self.keep_alive = KeepAlive(settings.sse_keep_alive_s)
        self.access_log = AccessLog(settings.access_log)
        self.unknown_fields = UnknownFields(settings.unknown_fields)

    @property
    def model_names(self) -> list[str]:
        """Names that clients may call the model; the first is in answers."""
        return list(dict.fromkeys((self.generator.model_name, *self.settings.served_model_names)))

    def with_model_name(self, values: JsonObject) -> JsonObject:
        """A body, with the model's first name in the place of another one that it has."""
        named = values.get("model")
        if not isinstance(named, str) or named not in self.settings.served_model_names:
            return values
        return {**values, "model": self.generator.model_name}

    @property
    def degraded(self) -> list[str]:
        """Promises that do not hold, while work is taken."""
        fault = self.journal_fault or (self.journal.failure if self.journal is not None else "")
        said = [f"streams end with their frontend, as its journal failed: {fault}"] if fault else []
        streams = [stream for stream in self._connections.values() if stream is not None]
        unheld = Counter(stream.unheld for stream in streams if stream.unheld)
        return said + [
            f"{count} of {len(streams)} connections end with their frontend: {reason}"
            for reason, count in sorted(unheld.items())
        ]

    def warn_unheld(self, reason: str) -> None:
        """Log why a connection ends with this process, once for each reason: there are a few."""
        if reason not in self._unheld_reasons:
            self._unheld_reasons.add(reason)
            logger.error("connections end with this frontend: %s", reason)

    @property
    def is_draining(self) -> bool:
        """Whether new work is refused."""
        return self._drain_begun.is_set()

    def is_full(self, address: str) -> bool:
        """Whether one more connection of this client would be over a limit."""
        limits = self.settings.limits
        is_one_full = self._by_address[address] >= limits.connections_per_address_max
        return len(self._connections) >= limits.connections_max or (
            is_one_full and address != LOCAL
        )

    def handle_closed(self, slot: int) -> None:
        """A connection with this slot, if it has one, is closed here."""
        if self.slots is not None and slot != NO_SLOT:
            self.slots.on_ended(slot)
            self.changes.notify()

    def count_refused(self) -> None:
        """A connection was refused at a limit."""
        self.counters.connections_refused += 1
        self.changes.notify()

    def check_accepting(self) -> None:
        """Raise `ApiError` 503 when draining; the caller is about to start work."""
        if self.is_draining:
            raise draining()

    async def adopt(self, streams: Iterable[AdoptedStream], keep_s: float) -> None:
        """Go on with what the life of this frontend before left; it runs when this returns.

        A reader that was cut off finds it for `keep_s`. Cancelled meanwhile: all is aborted.
        """
        self.books.adopted_until_s = trio.current_time() + keep_s
        self.books.adopted_keep_s = keep_s
        of_completions, others = list[AdoptedStream](), list[AdoptedStream]()
        for stream in streams:
            is_one = stream.surface == COMPLETIONS
            (of_completions if is_one else others).append(stream)
        await self.responses.adopt(others)
        await self.completions.adopt(of_completions)

    async def carry_out(self, call: ForeignCall) -> Any:
        """Do what another frontend asks for, or this one. Raises `ApiError`."""
        if call.verb is ForeignVerb.CLAIM:
            claim = msgspec.json.decode(call.text, type=ClaimCall)
            return self.books.claims.handle_claim(claim, time.monotonic_ns())
        is_execution = call.verb is ForeignVerb.EXECUTION
        if call.verb is ForeignVerb.CHUNKS or (is_execution and is_completion(call.response_id)):
            return await self.completions.carry_out(call)
        return await self.responses.carry_out(call)

    async def wait_drain_begun(self) -> None:
        """Return when the drain begins."""
        await self._drain_begun.wait()

    async def wait_held(self) -> None:
        """Return at a moment when a successor can go on with every connection.

        They are asked: to say it themselves would cost each of their writes.
        """
        with waiting_for("connections that are not held"):
            while not self._holds_all:  # noqa: ASYNC110
                await trio.sleep(HELD_LOOK_S)

    @property
    def _holds_all(self) -> bool:
        streams = self._connections.values()
        held = [None if stream is None else stream.held for stream in streams]
        return all(each is not None and each.is_held for each in held)

    @contextmanager
    def connection(
        self, address: str = LOCAL, stream: BoundedStream | None = None
    ) -> Iterator[None]:
        """The life of one connection, counted for its client's address.

        The body ends quietly when the drain's grace is over.
        """
        self.counters.connections += 1
        self.counters.connections_active += 1
        self.changes.notify()
        with trio.CancelScope() as scope:
            self._connections[scope] = stream
            self._by_address[address] += 1
            try:
                yield
            finally:
                del self._connections[scope]
                self._by_address[address] -= 1
                if not self._by_address[address]:
                    del self._by_address[address]
                self.counters.connections_active -= 1
                self.changes.notify()
                self._note_change()

    @contextmanager
    def idle(self, scope: trio.CancelScope, idle_s: float) -> Iterator[None]:
        """Around a wait for a next request, of `idle_s` at most; then `scope` is cancelled.

        So it is at once when a drain begins, or has begun.
        """
        scope.deadline = trio.current_time() + idle_s
        self._idle.add(scope)
        if self.is_draining:
            scope.cancel(DRAIN_REASON)
        try:
            yield
        finally:
            scope.deadline = math.inf
            self._idle.remove(scope)

    async def drain(self, grace_s: float, *, hands_over: bool = False) -> None:
        """Refuse new work, let what is in flight end within the grace, then cut it.

        One that `hands_over` leaves it to the successor, which goes on with it. Returns when no
        connection and no response is left. `/ready` answers 503 from the first moment. Idempotent;
        a second call may shorten the grace, and cut. Cancelled: the drain stays begun.
        """
        deadline = trio.current_time() + grace_s
        self.drain_deadline = min(deadline, self.drain_deadline or deadline)
        self.hands_over = hands_over
        self._drain_begun.set()
        for scope in list(self._idle):
            scope.cancel(DRAIN_REASON)
        with trio.move_on_at(math.inf if hands_over else self.drain_deadline + CLOSE_S):
            await self._wait_idle()
        for scope in list(self._connections):
            scope.cancel("the drain's grace is over")
        self.responses.store.cancel_all("the drain's grace is over")
        self.completions.store.cancel_all("the drain's grace is over")
        await self._wait_idle()

    def _note_change(self) -> None:
        if self.is_draining and not self._is_busy:
            self._changed.notify()

    @property
    def _is_busy(self) -> bool:
        runs = self.responses.store.active or self.completions.store.active
        return bool(self._connections or runs)

    async def _wait_idle(self) -> None:
        while self._is_busy:
            await self._changed.wait()


@attrs.define(eq=False)
class Call:
    """Request on its way to the handler of its route."""

    connection: HttpConnection
    application: Application
    principal: str
    # Resource in the path for `{id}`, and the query behind the path.
    resource_id: str = ""
    query: str = ""
    # The table of its body, where its route takes one.
    table: Body | None = None

    async def read_body(self) -> JsonObject:
        """Read the JSON body by its table. Raises `ApiError`."""
        values = await self.connection.read_json(self.principal)
        if self.table is not None:
            self.application.unknown_fields.check(self.table, values)
        return self.application.with_model_name(values)

    async def read_order(self) -> JsonObject:
        """The body of a request that generates, with the rank of its header. Raises `ApiError`."""
        return ranked(await self.read_body(), self.header(RANK_HEADER_NAME))

    def check_accepting(self) -> None:
        """Raises `ApiError` 503 where no new work is taken; what a life before has claimed is none.

        Whether that was admitted is seen where it is looked for.
        """
        if not self.connection.state.claimed:
            self.application.check_accepting()

    def claim(self, draw: Callable[[], str]) -> str:
        return self.connection.claim(draw, self.application.books.executions.was_unknown)

    def is_known(self) -> bool:
        """Whether it came with a key, or none is needed; for routes that are open."""
        return self.application.authentication.knows(authorization_of(self.header))

    def header(self, name: str) -> str | None:
        """The first value of a header, by its lower-case name."""
        request = self.connection.request
        return None if request is None else request.header(name)
