"""Places of a server, the fleets that fill them, and the root."""
