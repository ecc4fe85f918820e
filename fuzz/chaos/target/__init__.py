"""Chaos over the server of others: the same kills, and what clients of the same protocol lose."""
