"""Requests, balancing, resuming, processes: everything between an API and the engines."""
