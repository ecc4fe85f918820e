"""Clients without I/O: bytes in, bytes and histories out; one shell drives any number of them."""
