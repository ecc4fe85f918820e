"""HTTP/1.1: one connection's bytes, heads and bodies; who may ask, from where."""
