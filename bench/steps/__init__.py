"""Benchmarks of steps: kernels against the machine's floor, and the timeline of a step."""
