"""Links between frontends and engines: the link machine, ZeroMQ channels and threads."""
