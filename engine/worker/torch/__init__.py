"""The executor of plain PyTorch, and the oracle of the others."""
