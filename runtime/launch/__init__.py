"""Children of the root: started, watched, and ended, with all that they started."""
