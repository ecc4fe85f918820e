"""Fields of the bodies of all surfaces: kinds, bounds, names, and how each is read."""
