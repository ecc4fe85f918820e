"""Estates of processes: what outlives the life of a process, for the next one."""
