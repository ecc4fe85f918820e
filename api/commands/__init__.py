"""The commands of the `triolet` program, one file for each; `__main__` imports what one needs."""
