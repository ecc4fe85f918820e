"""The executor of plain PyTorch, and the oracle of the others."""

from ...kernels.library import limit_spinning

limit_spinning()  # torch brings a library of threads, and everything here imports torch
