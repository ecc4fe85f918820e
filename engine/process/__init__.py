"""The engine process: server, step loop, executor, rings to its workers."""
