"""Chaos over the real tree: seeded faults on processes and connections, judged from outside."""
