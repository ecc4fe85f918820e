"""Responses: one's life and record, the store of those kept, those of other frontends."""
