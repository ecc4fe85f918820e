"""The one list of fuzzers: `smoke`, `canary`, the command line and the tests all walk it.

Must not know what any of them does.
"""

from . import (
    fuzz_block_pool,
    fuzz_codec,
    fuzz_connections,
    fuzz_frames,
    fuzz_grammars,
    fuzz_handshake,
    fuzz_json,
    fuzz_ledger,
    fuzz_links,
    fuzz_models,
    fuzz_sampler,
    fuzz_scheduler,
    fuzz_supervision,
    fuzz_templates,
)
from .fuzzer import AnyFuzzer

FUZZERS: tuple[AnyFuzzer, ...] = (
    fuzz_block_pool.FUZZER,
    fuzz_codec.FUZZER,
    fuzz_connections.FUZZER,
    fuzz_frames.FUZZER,
    fuzz_grammars.FUZZER,
    fuzz_handshake.FUZZER,
    fuzz_json.FUZZER,
    fuzz_ledger.FUZZER,
    fuzz_links.FUZZER,
    fuzz_models.FUZZER,
    fuzz_sampler.FUZZER,
    fuzz_scheduler.FUZZER,
    fuzz_supervision.FUZZER,
    fuzz_templates.FUZZER,
)
