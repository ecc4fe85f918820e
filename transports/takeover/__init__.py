"""Takeover of TCP connections by the next process that serves them."""
