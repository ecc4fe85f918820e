"""The engine's decisions: requests, blocks, schedule, stop rules. Sans-IO: no trio, no torch."""
