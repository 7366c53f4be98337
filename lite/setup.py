"""Packaging of t2r_seq_lite: runs and serves policies without TensorFlow.

A subset of the modules of t2r_seq, under the same names. Install one of the two
distributions, as they share files.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

import setuptools
from setuptools.command import build_py

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parent / "t2r_seq"
MODULES = {
  "t2r_seq": "__init__ __main__ errors imports process stamps",
  "t2r_seq.cli": "__init__ console gin_registry main serve",
  "t2r_seq.lite": "__init__ lite_policy overlap policy_io sensor_values texts",
  "t2r_seq.serving": "__init__ listening websocket",
}


class BuildPy(build_py.build_py):
  """Builds only the modules in `MODULES`."""

  def find_package_modules(self, package: str, package_dir: str) -> list[Any]:
    """Returns (package, module, file) of each module."""
    found = super().find_package_modules(package, package_dir)
    return [each for each in found if each[1] in MODULES[package].split()]


def read_version() -> str:
  """Reads `__version__` from the package without importing it."""
  text = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
  match = re.search(r"""^__version__ = ["']([^"']+)["']""", text, re.MULTILINE)
  if match is None:
    raise RuntimeError("t2r_seq/__init__.py: no line `__version__ = '...'`.")
  return match.group(1)


setuptools.setup(
  name="t2r_seq_lite",
  version=read_version(),
  description="Runs and serves the policies of t2r_seq without TensorFlow.",
  long_description=(HERE / "README.md").read_text(encoding="utf-8"),
  long_description_content_type="text/markdown",
  license="Apache-2.0",
  python_requires=">=3.10,<3.15",
  packages=list(MODULES),
  package_dir={"t2r_seq": "../t2r_seq"},
  package_data={"t2r_seq": ["py.typed"]},
  cmdclass={"build_py": BuildPy},
  zip_safe=False,
  install_requires=["numpy>=1.23.5,<3", "ai-edge-litert>=1.4"],
  extras_require={"serve": ["websockets>=15", "msgpack>=1"]},
  entry_points={"console_scripts": ["t2r_seq = t2r_seq.cli.main:main"]},
)
