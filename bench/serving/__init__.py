"""Benchmarks of serving: latency, throughput, prefix cache, start and recovery."""
