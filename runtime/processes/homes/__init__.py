"""Homes of frontends: which process owns each, and the folder of their journals."""
