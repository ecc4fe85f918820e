"""Launchers: a head has its hosts begun, on this machine or on those of a cluster."""
