"""Control socket of a running server: how a command finds it and what it may ask."""
