"""Journal of a frontend: what it promised, in memory that outlives it."""
