"""Benchmarks of single parts: bridge, ring, scheduler, frontend, sampler, kernels."""
