"""Anthropic's Messages protocol, sans-IO: bodies to typed requests, outputs to events."""
