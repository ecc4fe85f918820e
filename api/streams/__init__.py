"""Served streams: the life that every answer has above its connections, whatever its protocol."""
