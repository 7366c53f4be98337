"""`import_reverb`: Reverb, or an error that says what to install."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from types import ModuleType

DM_REVERB = "0.14.0"
TENSORFLOW = "2.15"
_PYTHONS = ((3, 10), (3, 11))


def import_reverb() -> ModuleType:
  """Imports Reverb.

  Reverb's newest wheel is built against one TensorFlow and a few Pythons; with any
  other it is not found at all, or its libraries lack symbols.

  Returns:
    The module.
  Raises:
    ImportError: it is not installed, or not beside what it was built for; says what
      there is and what to install.
  """
  found = _found()
  if not _is_the_pair(*found):
    raise ImportError(_message(*found, "it cannot be loaded there"))
  # gRPC tries to reconnect while somebody polls, and Reverb's readers do not: they ask,
  # and ask again. What polls in their place does so every 5 s unless it is told, and a
  # server that is back is seen after 10 s; so it is after 1 s.
  os.environ.setdefault("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "200")
  try:
    return importlib.import_module("reverb")
  except ImportError as error:
    raise ImportError(_message(*found, f"importing it failed: {error}")) from error


def _found() -> tuple[str, str, tuple[int, int]]:
  """Returns the versions of dm-reverb, TensorFlow and Python."""
  return (
    _version("dm-reverb"),
    _version("tensorflow"),
    (sys.version_info.major, sys.version_info.minor),
  )


def _version(distribution: str) -> str:
  try:
    return importlib.metadata.version(distribution)
  except importlib.metadata.PackageNotFoundError:
    return ""


def _is_the_pair(reverb: str, tensorflow: str, python: tuple[int, int]) -> bool:
  # TensorFlow comes under several names (tensorflow-cpu, builds of one's own): where
  # there is none of this name, importing decides.
  is_tensorflow = not tensorflow or tensorflow.startswith(TENSORFLOW + ".")
  return bool(reverb) and is_tensorflow and python in _PYTHONS


def _message(reverb: str, tensorflow: str, python: tuple[int, int], why: str) -> str:
  pythons = " or ".join(f"{major}.{minor}" for major, minor in _PYTHONS)
  got = f"dm-reverb {reverb}" if reverb else "no dm-reverb"
  return (
    f"reverb: expected dm-reverb {DM_REVERB} with TensorFlow {TENSORFLOW} on CPython "
    f"{pythons}, got {got} with TensorFlow {tensorflow or 'of another name'} on "
    f"CPython {python[0]}.{python[1]}; {why}. Make an environment for it: "
    "python3.11 -m venv reverb-env && reverb-env/bin/pip install 't2r_seq[reverb]'"
  )
