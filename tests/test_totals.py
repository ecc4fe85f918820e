"""Totals of lines: the house grows by decision, in a commit that says why, and not by drift."""

import pathlib
import tomllib

import pytest

from .house import ROOT

SUFFIXES = {".py", ".cpp", ".h", ".js"}
# By the names in pyproject.toml: folders, and for the product also the package's own modules.
PARTS = {
    "product": ("api", "runtime", "engine", "transports", "nurseries"),
    "tests": ("tests",),
    "fuzz": ("fuzz",),
    "bench-and-tools": ("bench", "tools"),
}
LIMITS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["triolet"]["lines-max"]


def lines_of(part: str, root: pathlib.Path = ROOT) -> int:
    """All lines of source, comments and empty ones included."""
    found = [path for folder in PARTS[part] for path in (root / folder).rglob("*")]
    found += root.glob("*.py") if part == "product" else ()
    return sum(path.read_bytes().count(b"\n") for path in found if path.suffix in SUFFIXES)


@pytest.mark.parametrize("part", PARTS)
def test_no_part_of_the_house_grows_beyond_its_limit(part: str) -> None:
    assert lines_of(part) <= LIMITS[part], "shrink it, or raise its limit and say why"
