"""Benchmarks: `triolet bench` and its sub-commands; `python -m triolet.bench` for single parts."""
