"""What a checkpoint has besides the episodes: arrays and JSON values, in one file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import errors

_NAME = "state.npz"
_HEADER = "header"
_FORMAT = "t2r_seq.replay.checkpoint"
_VERSION = 1


def is_in(folder: str) -> bool:
  """Whether there is a state file in a folder."""
  return os.path.isfile(os.path.join(folder, _NAME))


def write(
  folder: str, values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
  """Writes the state; when it returns, it is on the disk.

  Args:
    folder: to put the file into.
    values: JSON values by name.
    arrays: by name; not of objects.
  """
  header = json.dumps(
    {
      "format": _FORMAT,
      "version": _VERSION,
      "arrays": [*arrays],
      "values": dict(values),
    }
  )
  encoded = np.frombuffer(header.encode(), np.uint8)
  with open(os.path.join(folder, _NAME), "wb") as file:
    np.savez(file, **{_HEADER: encoded}, **arrays)  # type: ignore[arg-type]
    file.flush()
    os.fsync(file.fileno())


def read(folder: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """Reads the state.

  Args:
    folder: with the file in it.
  Returns:
    The values and the arrays, by name.
  Raises:
    ReplayError: the file is damaged, or of another program or version.
  """
  place = os.path.join(folder, _NAME)
  try:
    # The checksums of the parts of a zip file are compared as they are read.
    with np.load(place, allow_pickle=False) as loaded:
      arrays = {name: loaded[name] for name in loaded.files}
    header = json.loads(arrays.pop(_HEADER).tobytes())
    if header["format"] != _FORMAT or header["version"] != _VERSION:
      raise ValueError(f"{header['format']!r} of version {header['version']!r}")
    if header["arrays"] != [*arrays]:
      raise ValueError(f"the arrays {[*arrays]}, not {header['arrays']}")
    return dict(header["values"]), arrays
  except Exception as error:  # A damaged zip file raises whatever its bytes lead to.
    raise errors.ReplayError(
      f"replay: {place}: expected the state of a replay, '{_FORMAT}' of version "
      f"{_VERSION}, got {error!r}. Restore a former checkpoint."
    ) from error
