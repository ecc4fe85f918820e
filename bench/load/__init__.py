"""The load generator: a schedule, clients that cost little, and what they measured."""
