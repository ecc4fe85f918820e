"""Takeover, simulated: lives of one frontend over a simulated TCP, clients who read every byte."""
