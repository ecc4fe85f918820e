"""Model families, their loader and registry: one file for each family, read top to bottom."""
