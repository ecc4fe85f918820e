"""KV events: which prefixes an engine has cached, published for routers in vLLM's shape.

Sans-IO: `KVEventLog` notes what the block pool does, `KVEventStream` numbers batches and keeps them
for replay; `process.kv_publisher` sends them.

A batch is a MessagePack array: [time, events, rank]. An event is a map: its class by name under
"type", and that class's fields, in vLLM's order. vLLM before 0.24 had arrays there.

Hashes are the low 64 bits of ours, as vLLM publishes its own. A *snapshot* is a batch that clears
all, then stores what is cached: it begins each life of an engine, and takes the place of increments
that were too many to keep. So a subscriber that reads from any snapshot on, without a gap, has the
state of the engine.

Numbers of batches begin at the engine's start in microseconds since 1970: those of a later life are
higher, as no engine makes a batch each microsecond.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import attrs
import msgspec

from ..config import EngineSettings

_HASH_BYTES = 8
# Events between two batches: some steps' worth. Where there are more, nobody takes them, and a
# snapshot says the same.
PENDING_MAX = 65_536
# Memory for batches kept for replay: 8 snapshots of a million blocks would be 250 MiB.
REPLAY_BYTES_MAX = 64 * 2**20


class BlockStored(msgspec.Struct, tag=True, gc=False):
    """Blocks that follow each other in one prompt can be found from now on."""

    block_hashes: list[int]
    # Parent of the first block; None where that is a prompt's first, or the parent is forgotten.
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: None
    medium: str
    lora_name: None


class BlockRemoved(msgspec.Struct, tag=True, gc=False):
    """Blocks cannot be found any more."""

    block_hashes: list[int]
    medium: str


class AllBlocksCleared(msgspec.Struct, tag=True, gc=False):
    """Nothing can be found but what the next events store."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


def external_hash(block_hash: bytes) -> int:
    """Number by which subscribers know a block."""
    return int.from_bytes(block_hash[-_HASH_BYTES:], "big")


class _Stored(NamedTuple):
    """Parent and tokens of a cached block; unknown if an earlier life stored it."""

    parent: bytes | None = None
    token_ids: Sequence[int] = ()


@attrs.define(eq=False)
class KVEventLog:
    """Changes of one block pool that are not published yet.

    Token ids are noted `with_token_ids` only: they are what clients wrote.
    """

    block_tokens: int
    medium: str
    with_token_ids: bool = False
    # Called when there is something to publish, once until it is taken.
    on_news: Callable[[], None] = lambda: None
    # {hash: its block}, of all that the pool has cached.
    held: dict[bytes, _Stored] = attrs.field(factory=dict, init=False)
    # Since the last batch; at most PENDING_MAX.
    _pending: list[Event] = attrs.field(factory=list, init=False)
    # The hash that a BlockStored at the end of `_pending` may go on behind.
    _tail: bytes | None = attrs.field(default=None, init=False)
    # The next batch is a snapshot; `_pending` is empty then.
    _snapshot_due: bool = attrs.field(default=True, init=False)

    @classmethod
    def of(cls, settings: EngineSettings, on_news: Callable[[], None]) -> "KVEventLog | None":
        """Make the log by the settings; None if nothing is to be published."""
        if not settings.kv_events_endpoint:
            return None
        return cls(settings.block_tokens, settings.medium, settings.kv_events_token_ids, on_news)

    @property
    def has_news(self) -> bool:
        """Whether `take` has something."""
        return self._snapshot_due or bool(self._pending)

    def note_found(self, block_hash: bytes) -> None:
        """An earlier life cached this block."""
        self.held[block_hash] = _Stored()

    def note_stored(
        self, block_hash: bytes, parent: bytes | None, token_ids: Sequence[int]
    ) -> None:
        """A block can be found from now on; `parent` is None for a prompt's first."""
        stored = _Stored(parent, tuple(token_ids) if self.with_token_ids else ())
        self.held[block_hash] = stored
        if self._snapshot_due:
            return
        last = self._last_pending
        if isinstance(last, BlockStored) and parent is not None and parent == self._tail:
            last.block_hashes.append(external_hash(block_hash))
            last.token_ids.extend(stored.token_ids)
        else:
            self._add(self._stored_event(block_hash, stored))
        self._tail = None if self._snapshot_due else block_hash

    def note_removed(self, block_hash: bytes) -> None:
        """A block was evicted, or what it holds may be wrong."""
        del self.held[block_hash]
        if self._snapshot_due:
            return
        self._tail = None
        last = self._last_pending
        if isinstance(last, BlockRemoved):
            last.block_hashes.append(external_hash(block_hash))
        else:
            self._add(BlockRemoved([external_hash(block_hash)], self.medium))

    def note_cleared(self) -> None:
        """The memory was lost."""
        self.held.clear()
        self.ask_snapshot()

    def ask_snapshot(self) -> None:
        """Let the next batch say all that is cached."""
        self._pending.clear()
        self._tail = None
        self._snapshot_due = True
        self.on_news()

    def take(self) -> list[Event]:
        """Events of the next batch; none if nothing has changed."""
        events, self._pending, self._tail = self._pending, [], None
        if self._snapshot_due:
            self._snapshot_due = False
            events = [AllBlocksCleared()]
            events += [self._stored_event(*item) for item in self.held.items()]
        return events

    def _stored_event(self, block_hash: bytes, stored: _Stored) -> Event:
        parent = None if stored.parent is None else external_hash(stored.parent)
        hashes, tokens = [external_hash(block_hash)], list(stored.token_ids)
        return BlockStored(hashes, parent, tokens, self.block_tokens, None, self.medium, None)

    @property
    def _last_pending(self) -> Event | None:
        return self._pending[-1] if self._pending else None

    def _add(self, event: Event) -> None:
        if len(self._pending) == PENDING_MAX:
            self.ask_snapshot()
            return
        self._pending.append(event)
        if len(self._pending) == 1:
            self.on_news()


@attrs.frozen
class KVEventBatch:
    """Encoded message of the stream."""

    number: int
    payload: bytes
    is_snapshot: bool


@attrs.define(eq=False)
class KVEventStream:
    """Batches of one engine's life: numbered, and the latest `batches_max` kept."""

    log: KVEventLog
    rank: int
    next_number: int
    batches_max: int
    # Bounded by `batches_max`, without a gap between them; the newest is last.
    _kept: deque[KVEventBatch] = attrs.field(factory=deque, init=False)
    _kept_bytes: int = attrs.field(default=0, init=False)

    def next_batch(self, wall_s: float) -> KVEventBatch | None:
        """Encode the changes since the last batch; None if there are none."""
        events = self.log.take()
        if not events:
            return None
        is_snapshot = isinstance(events[0], AllBlocksCleared)
        payload = msgspec.msgpack.encode([wall_s, events, self.rank])
        batch = KVEventBatch(self.next_number, payload, is_snapshot)
        self.next_number += 1
        self._kept.append(batch)
        self._kept_bytes += len(payload)
        while len(self._kept) > self.batches_max or (
            self._kept_bytes > REPLAY_BYTES_MAX and len(self._kept) > 1
        ):
            self._kept_bytes -= len(self._kept.popleft().payload)
        return batch

    def lacks(self, start: int) -> bool:
        """Whether those from `start` on cannot be replayed, and no snapshot stands for them.

        The caller asks for a snapshot and publishes it, before it replays.
        """
        if not self._kept:
            return True
        oldest = self._kept[0]
        return start < oldest.number and not oldest.is_snapshot

    def replay(self, start: int) -> Iterator[KVEventBatch]:
        """Kept batches from this number on."""
        return iter([batch for batch in self._kept if batch.number >= start])
