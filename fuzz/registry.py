"""The one list of fuzzers: `smoke`, `canary`, the command line and the tests all walk it.

Must not know what any of them does.
"""

from . import fuzz_codec
from .fuzzer import AnyFuzzer

FUZZERS: tuple[AnyFuzzer, ...] = (fuzz_codec.FUZZER,)
