"""What needs the kernels is skipped where there are none, which the build has said."""

import pytest

from triolet.engine.kernels.library import native_fault


@pytest.fixture
def kernels_here() -> None:
    """Skip where no compiler built kernels."""
    if fault := native_fault():
        pytest.skip(fault)
