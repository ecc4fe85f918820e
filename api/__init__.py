"""Frames and HTTP to calls and back: one port, OpenAI protocols, every connection in a firewall."""
