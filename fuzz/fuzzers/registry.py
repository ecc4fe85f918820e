"""The one list of fuzzers: `smoke`, `canary`, the command line and the tests all walk it."""

from ..fuzzer import AnyFuzzer
from . import (
    block_pool,
    codec,
    connections,
    frames,
    grammars,
    handshake,
    json,
    ledger,
    links,
    models,
    sampler,
    scheduler,
    supervision,
    templates,
)

FUZZERS: tuple[AnyFuzzer, ...] = (
    block_pool.FUZZER,
    codec.FUZZER,
    connections.FUZZER,
    frames.FUZZER,
    grammars.FUZZER,
    handshake.FUZZER,
    json.FUZZER,
    ledger.FUZZER,
    links.FUZZER,
    models.FUZZER,
    sampler.FUZZER,
    scheduler.FUZZER,
    supervision.FUZZER,
    templates.FUZZER,
)
