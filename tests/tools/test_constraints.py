"""Constraints file: a version of each requirement, within what the package allows."""

import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from triolet.tools.constraints import installed_versions

from ..house import ROOT


def test_the_constraints_name_a_version_of_each_requirement_that_it_allows() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in map(Requirement, project["dependencies"]):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])
    assert "torch" not in pins
    assert {"trio", "h11", "markdown-it-py"} <= installed_versions("triolet").keys()
