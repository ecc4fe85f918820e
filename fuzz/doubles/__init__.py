"""Doubles: verified fakes, and test clients of HTTP and WebSocket."""
