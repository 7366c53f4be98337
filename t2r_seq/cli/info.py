"""`t2r_seq info`: versions, devices and extras, for bug reports."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re

from t2r_seq import __version__
from t2r_seq.cli import console

SUMMARY = "show versions, devices and which extras are installed"
DESCRIPTION = """Shows what a bug report needs: versions, devices, extras.

  t2r_seq info
  t2r_seq info --no_devices      without loading TensorFlow"""

_PACKAGES = ("tensorflow", "keras", "numpy", "gin-config", "protobuf", "google-crc32c")


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the command's arguments."""
  parser.add_argument(
    "--no_devices", action="store_true", help="do not load TensorFlow to list devices"
  )


def run(args: argparse.Namespace) -> int:
  """Prints a table of versions, devices and extras."""
  rows = {
    "t2r_seq": __version__,
    "Python": f"{platform.python_implementation()} {platform.python_version()}",
    "system": platform.platform(),
    "processors": f"{os.cpu_count()}",
  }
  rows |= {name: _version(name) or "missing" for name in _PACKAGES}
  if not args.no_devices:
    rows["devices"] = _devices()
  extras = _extras()
  rows["extras"] = ", ".join(name for name, lacks in extras.items() if not lacks)
  for name, value in rows.items():
    print(f"{name:<14} {value or 'none'}")
  for name, lacks in extras.items():
    if lacks:
      print(f"without {name:<14} needs {', '.join(lacks)}")
  return 0


def _version(distribution: str) -> str | None:
  try:
    return importlib.metadata.version(distribution)
  except importlib.metadata.PackageNotFoundError:
    return None


def _devices() -> str:
  if _version("tensorflow") is None:
    return "unknown: no TensorFlow"
  console.load_tensorflow()
  import tensorflow as tf

  return ", ".join(device.name for device in tf.config.list_logical_devices())


def _extras() -> dict[str, list[str]]:
  """Returns the missing packages of each extra."""
  lacks: dict[str, list[str]] = {}
  try:
    requirements = importlib.metadata.requires("t2r_seq") or []
  except importlib.metadata.PackageNotFoundError:  # Run from a folder.
    return {}
  for requirement in requirements:
    # Such as 'pyarrow>=14; extra == "lerobot"'; may also have a Python version.
    if match := re.match(r"([\w.-]+).*extra == [\"']([\w-]+)[\"']", requirement):
      package, extra = match.groups()
      missing = lacks.setdefault(extra, [])
      if _version(package) is None and package not in missing:
        missing.append(package)
  return lacks
