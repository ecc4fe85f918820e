"""Programs that press the runtime: fuzzers, load, chaos. May import everything but tests."""
