"""Tasks: background tasks and services, supervision, the task tree."""
