"""Accepts connections, hands each to its protocol, and reports the load."""
