"""Fuzzers of parsers that read what clients send, in memory: a million inputs in minutes."""
