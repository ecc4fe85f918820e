"""WebSocket sessions: opening, limits, frames, lanes, the writer of events."""
