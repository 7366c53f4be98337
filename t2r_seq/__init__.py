"""t2r_seq: one spec structure, from records to stacked frames to a deployed policy."""

from __future__ import annotations

import importlib
from types import ModuleType

__version__ = "0.1.0"

__all__ = [
  "actors",
  "convert",
  "data",
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
  "summaries",
  "tensorspec_utils",
  "testing",
  "tfdata",
  "training",
  "transitions",
  "verification",
  "viewing",
  "windows",
]


def __getattr__(name: str) -> ModuleType:
  # Loaded on first use: `import t2r_seq` alone costs no TensorFlow.
  if name in __all__:
    try:
      return importlib.import_module(f"t2r_seq.{name}")
    except ModuleNotFoundError as error:
      if error.name != f"t2r_seq.{name}":
        raise
      raise ImportError(
        f"t2r_seq.{name} is not a part of t2r_seq_lite, which runs policies only: pip "
        "install t2r_seq"
      ) from error
  raise AttributeError(f"module 't2r_seq' has no attribute '{name}'")
