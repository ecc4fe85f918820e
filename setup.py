"""Adds the native kernels to the build; everything else about the package is in pyproject.toml.

The kernels are compiled by `engine/kernels/build.py`. They are optional: without a C++ compiler the
package installs all the same, serves with torch, and `triolet doctor` says why. The objects have a
plain C interface and call nothing of Python, so one wheel serves every version of it.
"""

import importlib.util
import pathlib
import sys

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
KERNELS = HERE / "engine" / "kernels"

spec = importlib.util.spec_from_file_location("build_kernels", KERNELS / "build.py")
assert spec is not None
assert spec.loader is not None
kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernels)


class BuildKernels(build_ext):
    """Compiles one shared object for each instruction set, in place for an editable install."""

    def run(self) -> None:
        """Compile; a failure is told and leaves the package without kernels."""
        try:
            kernels.build(self._target())
        except kernels.CompilerMissing as error:
            sys.stderr.write(f"triolet: native kernels are not built: {error}\n")

    def get_outputs(self) -> list[str]:
        """The objects there are, for the list of installed files."""
        return [str(path) for path in sorted(self._target().glob("kernels-*.so"))]

    def get_output_mapping(self) -> dict[str, str]:
        """In an editable install the objects are where they are used."""
        return {}

    def _target(self) -> pathlib.Path:
        if self.inplace or getattr(self, "editable_mode", False):
            return KERNELS
        return pathlib.Path(self.build_lib, "triolet", "engine", "kernels")


# This file, which lies where the modules of the package do, and a program that no wheel can run.
LEFT_OUT = {("triolet", "setup"), ("triolet.fuzz", "__main__")}


class BuildModules(build_py):
    """Copies the modules that are used after an installation."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Find all modules of the package but those."""
        found = super().find_package_modules(package, package_dir)
        return [module for module in found if module[:2] not in LEFT_OUT]


class KernelsWheel(bdist_wheel):
    """A wheel for any Python on one platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """No Python ABI: the objects are opened with ctypes."""
        return ("py3", "none", super().get_tag()[2])


setup(
    # Not an extension module: its presence makes setuptools run `build_ext` and mark the platform.
    ext_modules=[Extension("triolet.engine.native.kernels", sources=[])],
    cmdclass={"build_ext": BuildKernels, "build_py": BuildModules, "bdist_wheel": KernelsWheel},
)
