"""The lazy public face: each name resolves, and importing the package imports nothing else."""

import subprocess
import sys

import pytest

import triolet


def test_each_public_name_resolves() -> None:
    for name in triolet.__all__:
        assert getattr(triolet, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = triolet.nothing


@pytest.mark.slow
def test_importing_the_package_imports_no_room() -> None:
    program = "import sys, triolet; print([n for n in sys.modules if n.startswith('triolet.')])"
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True
    )
    assert completed.stdout.strip() == "[]"
