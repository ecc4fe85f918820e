"""HTTP routes: the table, and a handler for each."""
