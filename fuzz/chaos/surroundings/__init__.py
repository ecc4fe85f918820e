"""Faults of what surrounds a server: its network, its descriptors."""
