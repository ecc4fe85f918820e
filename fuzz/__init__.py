"""Programs that press the runtime: fuzzers and chaos. May import everything but tests."""
