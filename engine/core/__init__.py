"""What decides in an engine: requests, blocks, schedule, stop rules. Sans-IO: no trio, no torch."""
