"""The one list of fuzzers: `smoke`, `canary`, the command line and the tests all walk it.

Must not know what any of them does.
"""

from ..fuzzer import AnyFuzzer
from . import block_pool as fuzz_block_pool
from . import codec as fuzz_codec
from . import connections as fuzz_connections
from . import frames as fuzz_frames
from . import grammars as fuzz_grammars
from . import handshake as fuzz_handshake
from . import json as fuzz_json
from . import ledger as fuzz_ledger
from . import links as fuzz_links
from . import models as fuzz_models
from . import sampler as fuzz_sampler
from . import scheduler as fuzz_scheduler
from . import supervision as fuzz_supervision
from . import templates as fuzz_templates

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
