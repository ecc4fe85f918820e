"""What Prometheus reads: our families, vLLM's names, latency histograms."""
