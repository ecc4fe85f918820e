"""Commands of the `triolet` program; `command_line` imports what each needs when it runs."""
