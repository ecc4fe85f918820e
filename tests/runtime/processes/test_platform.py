"""A system without the building blocks is refused by name."""

import pytest

from triolet.runtime.processes.platform import UnsupportedPlatform, check_platform


def test_this_system_will_do() -> None:
    check_platform()


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UnsupportedPlatform) as caught:
        check_platform("darwin", object())
    assert "darwin" in str(caught.value)
    assert "os.pidfd_open" in str(caught.value)
