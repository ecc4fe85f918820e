"""Requests, balancing, resuming, launching: everything between an API and the engines."""
