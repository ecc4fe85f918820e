"""The root's half: fleets of engines and frontends, supervision, spares, membership."""
