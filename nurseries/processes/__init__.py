"""Processes: spawning, the child's side, death watch, pools, shutdown."""
