"""Report of a campaign: figures, a table, JSON, and a picture of streams and faults over time."""
