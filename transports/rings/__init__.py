"""Rings in shared memory between an engine and its workers."""
