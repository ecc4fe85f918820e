"""KV events: an index that a router keeps equals the prefix cache, whatever dies."""

import random
from typing import Any

import attrs
import msgspec
import pytest

from triolet.engine.block_names import NAME_BYTES, BlockNames
from triolet.engine.config import EngineSettings
from triolet.engine.core import kv_events
from triolet.engine.core.engine_core import EngineCore
from triolet.engine.core.kv_events import (
    PENDING_MAX,
    KVEventLog,
    KVEventStream,
    external_hash,
)
from triolet.engine.errors import InvalidParameter
from triolet.tests.engine.core.driver import READY, add_request, make_worker

HEAD = b"h" * 32
BLOCKS = 48


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    """As vLLM 0.33 declares it, without what has a default."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    block_hashes: list[int | bytes]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


@attrs.define(eq=False)
class Index:
    """What a router keeps of one engine."""

    held: set[int | bytes] = attrs.field(factory=set)

    def read(self, payload: bytes) -> None:
        for event in msgspec.msgpack.decode(payload, type=KVEventBatch).events:
            match event:
                case BlockStored():
                    self.held.update(event.block_hashes)
                case BlockRemoved():
                    assert self.held.issuperset(event.block_hashes)
                    self.held.difference_update(event.block_hashes)
                case AllBlocksCleared():
                    self.held.clear()


def make_log(**fields: Any) -> KVEventLog:
    return KVEventLog(4, "CPU", **fields)


def name_of(number: int) -> bytes:
    return number.to_bytes(NAME_BYTES, "big")


def test_a_batch_has_the_bytes_that_subscribers_of_vllm_read() -> None:
    log = make_log(with_token_ids=True)
    stream = KVEventStream(log, 3, next_number=70, batches_max=10)
    first = stream.next_batch(1.5)
    assert first is not None
    assert msgspec.msgpack.decode(first.payload) == [1.5, [{"type": "AllBlocksCleared"}], 3]
    log.note_stored(name_of(1), None, [1, 2, 3, 4])
    log.note_stored(name_of(2), name_of(1), [5, 6, 7, 8])
    log.note_stored(name_of(2**64 + 9), None, [9, 9, 9, 9])
    log.note_removed(name_of(2))
    log.note_removed(name_of(1))
    batch = stream.next_batch(2.5)
    assert batch is not None
    assert batch.number == 71
    events: list[BlockStored | BlockRemoved | AllBlocksCleared] = [
        BlockStored([1, 2], None, [1, 2, 3, 4, 5, 6, 7, 8], 4, None, "CPU", None),
        BlockStored([9], None, [9, 9, 9, 9], 4, None, "CPU", None),
        BlockRemoved([2, 1], "CPU"),
    ]
    assert batch.payload == msgspec.msgpack.encode(KVEventBatch(2.5, events, 3))
    assert stream.next_batch(3.5) is None


def test_token_ids_are_published_only_by_option() -> None:
    log = make_log()
    log.take()
    log.note_stored(name_of(1), None, [1, 2, 3, 4])
    (event,) = log.take()
    assert isinstance(event, kv_events.BlockStored)
    assert event.token_ids == []


def test_more_events_than_are_kept_become_a_snapshot() -> None:
    log = make_log()
    log.take()
    for number in range(PENDING_MAX + 2):
        log.note_stored(name_of(number), None, [])
    events = log.take()
    assert events[0] == kv_events.AllBlocksCleared()
    assert len(events) == 1 + len(log.held)


def test_who_comes_late_reads_from_a_snapshot_on() -> None:
    log = make_log()
    stream = KVEventStream(log, 0, next_number=0, batches_max=3)
    assert stream.lacks(0), "nothing was published"
    for number in range(5):
        log.note_stored(name_of(number), None, [])
        stream.next_batch(0.0)
    assert [batch.number for batch in stream.replay(0)] == [2, 3, 4]
    assert stream.lacks(0), "the snapshot is not kept any more"
    assert not stream.lacks(2), "a gap that is kept needs none"
    log.ask_snapshot()
    assert stream.next_batch(0.0) is not None
    log.note_stored(name_of(7), None, [])
    stream.next_batch(0.0)
    log.note_stored(name_of(8), None, [])
    stream.next_batch(0.0)
    assert not stream.lacks(0)
    index = Index()
    for batch in stream.replay(0):
        index.read(batch.payload)
    assert index.held == {external_hash(each) for each in log.held}


@attrs.define(eq=False)
class Lives:
    """Engine cores one after the other in one place, and a router that reads what they publish."""

    names: BlockNames
    index: Index = attrs.field(factory=Index)
    core: EngineCore = attrs.field(init=False)
    stream: KVEventStream = attrs.field(init=False)
    worker: Any = attrs.field(init=False)
    number: int = attrs.field(default=0, init=False)
    last_number: int = attrs.field(default=-1, init=False)

    def begin(self) -> None:
        """The next life: what the last one has cached is found by name."""
        settings = EngineSettings(
            model="none", block_tokens=4, max_num_seqs=8, max_num_batched_tokens=64,
            steps_in_flight=1, kv_events_endpoint="ipc://@triolet-test",
        )  # fmt: skip
        ready = attrs.evolve(READY, kv_blocks=BLOCKS)
        log = KVEventLog.of(settings, lambda: None)
        assert log is not None
        self.core = EngineCore(settings, ready, self.names, log)
        self.stream = KVEventStream(log, 0, next_number=self.last_number + 1000, batches_max=50)
        self.worker = make_worker(self.core)

    def read(self) -> None:
        if (batch := self.stream.next_batch(0.0)) is not None:
            assert batch.number > self.last_number
            assert batch.is_snapshot or batch.number == self.last_number + 1
            self.last_number = batch.number
            self.index.read(batch.payload)

    def serve(self, chance: random.Random, requests: int) -> None:
        """Prompts that begin alike, more of them than there are blocks for."""
        prefixes = [[chance.randrange(50) for _ in range(12)] for _ in range(12)]
        for _ in range(requests // 8):
            for _ in range(8):
                self.number += 1
                tail = [chance.randrange(50) for _ in range(chance.randrange(1, 9))]
                prompt = chance.choice(prefixes)[: chance.choice((4, 8, 12))] + tail
                self.core.add("f", add_request(f"r{self.number}", prompt=prompt, max_tokens=1))
            while (step := self.core.schedule(0.0)) is not None:
                self.core.finish_step(self.worker.execute(step), 0.0)
                if chance.random() < 0.7:  # else more steps come together
                    self.read()
            self.core.take_outputs()

    def check(self) -> None:
        self.read()
        self.core.check_invariants()
        own = {external_hash(each) for each in self.names.found().values()}
        assert own
        assert self.index.held == own


def test_an_index_over_thousands_of_requests_equals_the_engines() -> None:
    """Evictions all the time, the engine killed nine times, its memory lost once."""
    names = BlockNames(memoryview(bytearray(len(HEAD) + NAME_BYTES * BLOCKS)), HEAD)
    names.clear()
    lives, chance = Lives(names), random.Random(1)
    for life in range(10):
        lives.begin()  # the last one had steps in flight that nobody heard of
        lives.read()
        lives.serve(chance, 160)
        lives.check()
        if life == 5:
            lives.core.undo_steps()
            lives.core.forget_blocks()
            lives.worker = lives.worker.successor(lives.worker.number, is_kept=False)
            lives.read()
            assert not lives.index.held
        lives.serve(chance, 160)
        lives.check()
    assert lives.number == 3200


@pytest.mark.parametrize(
    ("endpoint", "is_open", "reason"),
    [
        ("tcp://*:5557", False, "other machines"),
        ("tcp://10.0.0.1:5557", False, "other machines"),
        ("tcp://127.0.0.1", False, "HOST:PORT"),
        ("tcp://127.0.0.1:0", False, "port"),
        ("http://127.0.0.1:80", True, "ipc"),
        ("ipc://", False, "empty"),
    ],
)
def test_endpoints_that_are_refused(endpoint: str, is_open: bool, reason: str) -> None:
    with pytest.raises(InvalidParameter, match=reason):
        EngineSettings(kv_events_endpoint=endpoint, kv_events_open=is_open)


def test_endpoints_that_are_taken() -> None:
    for endpoint in ("ipc:///run/kv", "ipc://@kv", "tcp://127.0.0.1:5557", "tcp://[::1]:5557"):
        assert EngineSettings(kv_events_endpoint=endpoint).kv_events_endpoint
    assert EngineSettings(kv_events_endpoint="tcp://*:5557", kv_events_open=True)
    with pytest.raises(InvalidParameter, match="needs"):
        EngineSettings(kv_events_replay_endpoint="ipc://@kv")
