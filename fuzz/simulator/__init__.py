"""The whole server in one loop: seeded tasks, simulated processes and network, faults, checkers."""
