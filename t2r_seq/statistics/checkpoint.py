"""How far a run has come: one small file, replaced atomically."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
import zipfile
from typing import Any

import numpy as np
from absl import logging

from t2r_seq import errors, files
from t2r_seq.statistics.tally import Tally

_FORMAT = "t2r_seq.statistics.checkpoint"
_VERSION = 1
_HEADER = "header"


class Checkpoint:
  """Partial sums of the parts that are done, and where to go on.

  It is used by a run of the same source, unchanged, with the same arguments only.
  """

  def __init__(self, path: str | None, run: dict[str, Any], seconds: float) -> None:
    """Creates the checkpoint of a run; nothing is read or written yet.

    Args:
      path: of the file; None keeps none.
      run: JSON values that say what is computed; another run starts anew.
      seconds: at least so much time between two writes.
    """
    self._path = path
    self._run = json.loads(json.dumps(run))
    self._seconds = seconds
    self._written = time.monotonic()

  def restore(self) -> tuple[Tally, dict[str, int]]:
    """Reads how far the run has come.

    Returns:
      The tally, and the cursor to go on from; both empty where there is no file.
    Raises:
      SpecError: the file is damaged, or no checkpoint.
    """
    if self._path is None or not os.path.exists(self._path):
      return Tally(), {}
    try:
      with np.load(self._path, allow_pickle=False) as loaded:
        arrays = {name: loaded[name] for name in loaded.files}
      header = json.loads(arrays.pop(_HEADER).tobytes())
      if header["format"] != _FORMAT or header["version"] != _VERSION:
        raise ValueError(f"{header['format']!r} of version {header['version']!r}")
      if header["run"] != self._run:
        logging.info("%s is of another run: starting anew.", self._path)
        return Tally(), {}
      tally = Tally.from_state(header["tally"], arrays)
    except (KeyError, OSError, TypeError, ValueError, zipfile.BadZipFile) as error:
      raise errors.SpecError(
        f"statistics: {self._path}: expected a checkpoint of version {_VERSION}, got "
        f"{error!r}. Remove the file to start anew."
      ) from error
    logging.info("Going on from %s: %d items are done.", self._path, tally.num_items)
    return tally, {name: int(value) for name, value in header["cursor"].items()}

  def save(self, tally: Tally, cursor: dict[str, int], is_due: bool = False) -> None:
    """Writes how far the run has come, if it is time.

    Args:
      tally: of all parts up to the cursor.
      cursor: `Part.end` of the last one.
      is_due: writes whatever the time.
    """
    now = time.monotonic()
    if self._path is None or not (is_due or now >= self._written + self._seconds):
      return
    values, arrays = tally.to_state()
    header = {
      "format": _FORMAT,
      "version": _VERSION,
      "run": self._run,
      "cursor": cursor,
      "tally": values,
    }
    encoded = np.frombuffer(json.dumps(header).encode(), np.uint8)
    buffer = io.BytesIO()
    named: dict[str, Any] = {_HEADER: encoded, **arrays}
    np.savez(buffer, **named)
    files.replace_file(os.path.abspath(self._path), buffer.getvalue())
    self._written = time.monotonic()

  def remove(self) -> None:
    """Removes the file, if there is one, and what a killed write has left of it."""
    if self._path is not None:
      folder, name = os.path.split(os.path.abspath(self._path))
      path = os.path.join(folder, name)
      for leaving in (path, *files.left_behind(path)):
        with contextlib.suppress(FileNotFoundError):
          os.remove(leaving)
