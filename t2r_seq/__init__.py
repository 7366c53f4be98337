"""t2r_seq: one spec structure, from records to stacked frames to a deployed policy."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

__version__ = "0.1.0"

__all__ = [
  "actors",
  "checks",
  "convert",
  "data",
  "episodes",
  "errors",
  "hooks",
  "layers",
  "lite",
  "meta_learning",
  "models",
  "policies",
  "preprocessors",
  "records",
  "replay",
  "serving",
  "specs",
  "statistics",
  "store",
  "tensorspec_utils",
  "testing",
  "tfdata",
  "training",
  "transitions",
  "verification",
  "viewing",
  "windows",
  "zoo",
]


class _ConfigsFinder:
  """Finds `configs/` of a checkout as `t2r_seq.configs`, where gin looks for it.

  A wheel has the gin files inside of the package. A checkout, and so an editable
  install, has them beside it.
  """

  @staticmethod
  def find_spec(
    name: str, path: object = None, target: object = None
  ) -> importlib.machinery.ModuleSpec | None:
    """Returns the import spec of `t2r_seq.configs`; None for any other module."""
    if name != f"{__name__}.configs":
      return None
    return importlib.util.spec_from_file_location(name, _CONFIGS)


_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CONFIGS = os.path.join(_ROOT, "configs", "__init__.py")
if os.path.isfile(_CONFIGS) and os.path.isfile(os.path.join(_ROOT, "setup.py")):
  # First: older code may have left a folder `configs` with only caches in the package.
  sys.meta_path.insert(0, _ConfigsFinder)


def __getattr__(name: str) -> object:
  if name == "open_episodes":
    return importlib.import_module("t2r_seq.episodes").open_episodes
  # Loaded on first use: `import t2r_seq` alone does not import TensorFlow.
  if name in __all__:
    try:
      return importlib.import_module(f"t2r_seq.{name}")
    except ModuleNotFoundError as error:
      if error.name != f"t2r_seq.{name}":
        raise
      raise ImportError(
        f"t2r_seq.{name} is not a part of t2r_seq_lite, which runs policies only: "
        "install t2r_seq instead"
      ) from error
  raise AttributeError(f"module 't2r_seq' has no attribute '{name}'")
