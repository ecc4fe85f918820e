"""Marks of what only a CUDA device can tell; nowhere else is it run."""

from collections.abc import Callable

import pytest
import torch

GPU_MARKS = (
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
)


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    """Where there is a CUDA device."""
    for mark in GPU_MARKS:
        test = mark(test)
    return test
