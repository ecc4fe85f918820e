"""Constraints file for pip: the installed versions of all that serving needs.

python -m triolet.tools.constraints > constraints.txt

The versions that were tested together; what the package requires has lower bounds alone. PyTorch,
an extra, is not among them.
"""

import sys
from importlib.metadata import distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def installed_versions(package: str) -> dict[str, str]:
    """{name: installed version} of all that `package` requires on this machine, in their order."""
    found: dict[str, str] = {}
    left = [package]
    while left:
        for line in distribution(left.pop()).requires or ():
            requirement = Requirement(line)
            name = canonicalize_name(requirement.name)
            is_wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if is_wanted and name not in found:
                found[name] = distribution(name).version
                left.append(name)
    return dict(sorted(found.items()))


def main() -> None:
    """Print the file."""
    sys.stdout.write("# Versions tested together: pip install -c constraints.txt dist/*.whl\n")
    pins = installed_versions("triolet").items()
    sys.stdout.writelines(f"{name}=={version}\n" for name, version in pins)


if __name__ == "__main__":
    main()
