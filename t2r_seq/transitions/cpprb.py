"""Reads cpprb's files of transitions, without unpickling what is pickled in them."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.transitions.metadata import NStep
from t2r_seq.transitions.pickled_arrays import read_pickled_arrays
from t2r_seq.transitions.saving import save_transitions

_OPERATION = "import_cpprb"
_VERSION = 1
_SAFE_WAY = (
  "In cpprb, load it into a buffer and write it with buffer.save_transitions(file, "
  "safe=True), or with numpy.savez(file, **buffer.get_all_transitions())."
)
_HEADERS = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}


def import_cpprb(
  npz_path: str | os.PathLike[str],
  store_path: str | os.PathLike[str],
  rew: str = "rew",
  done: str = "done",
  truncated: str = "truncated",
  n_step: tuple[int, float] | NStep | None = None,
  metadata: Mapping[str, Any] | None = None,
) -> int:
  """Saves the transitions of a file of cpprb as `save_transitions` does.

  cpprb is not needed. Its `buffer.save_transitions(file)` pickles the arrays: they are
  read as data, and a file in which there is anything but arrays is refused, so that
  nothing in a file is ever run. A file of `numpy.savez(file,
  **buffer.get_all_transitions())` is read, too.

  Args:
    npz_path: of cpprb's file, written with safe=True, its default.
    store_path: of the store; it must not be there, or be empty.
    rew: name of the reward in the buffer.
    done: name of the flag of terminals.
    truncated: name of the flag of truncations; there may be none.
    n_step: (n, gamma) of the buffer if it had `Nstep`: the file says only that it had.
    metadata: JSON values of the user's own, for the store.
  Returns:
    The number of chains.
  Raises:
    SpecError: no file of cpprb, a newer one, one of safe=False or with other things
      than arrays; n-step transitions and no `n_step`, or the other way round; or the
      transitions cannot be saved.
    StoreError: there is something at `store_path` already.
    OSError: the file cannot be read, or the folder not be written.
  """
  place = os.fspath(npz_path)
  declared = NStep.of(n_step)
  try:
    with zipfile.ZipFile(place) as archive:
      transitions = _read(place, archive, declared)
  except (zipfile.BadZipFile, zlib.error) as error:
    raise errors.SpecError(
      f"{_OPERATION}: {place}: expected a .npz file of cpprb, got {error}."
    ) from error
  return save_transitions(
    store_path, transitions, rew, done, truncated, declared, metadata
  )


def _read(place: str, archive: zipfile.ZipFile, declared: NStep | None) -> Any:
  names = [name.removesuffix(".npy") for name in archive.namelist()]
  if "data" not in names or "version" not in names:
    return {name: _read_member(place, archive, name) for name in names}
  version = _read_flag(place, archive, "version")
  if version != _VERSION:
    raise errors.SpecError(
      f"{_OPERATION}: {place}: expected format version {_VERSION} of cpprb, got "
      f"{version!r}. This t2r_seq knows no other."
    )
  _check_n_step(place, bool(_read_flag(place, archive, "Nstep")), declared)
  if not _read_flag(place, archive, "safe"):
    raise errors.SpecError(
      f"{_OPERATION}: {place}: expected transitions, got the inside of a buffer. The "
      "file was written with safe=False: its layout is cpprb's own, it may change, and "
      f"loading it means unpickling, which could run any code. {_SAFE_WAY}"
    )
  transitions = _read_member(place, archive, "data")
  if not isinstance(transitions, dict):
    raise errors.SpecError(
      f"{_OPERATION}: {place}: data: expected a dict of arrays, got "
      f"{errors.describe(transitions)}."
    )
  return transitions


def _check_n_step(place: str, is_n_step: bool, declared: NStep | None) -> None:
  if is_n_step and declared is None:
    raise errors.SpecError(
      f"{_OPERATION}: {place}: expected n_step=(n, gamma), got None. The transitions "
      "were made n-step ones by their buffer, and the file does not say with which n "
      "and gamma: give those of the buffer."
    )
  if declared is not None and not is_n_step:
    raise errors.SpecError(
      f"{_OPERATION}: {place}: expected {declared}, got one-step transitions. Leave "
      "n_step out; n-step returns are made on reading: "
      f"load_transitions(path).n_step({declared.n}, {declared.gamma})."
    )


def _read_flag(place: str, archive: zipfile.ZipFile, name: str) -> Any:
  try:
    return np.asarray(_read_member(place, archive, name)).item()
  except (KeyError, ValueError) as error:
    if isinstance(error, errors.SpecError):
      raise
    raise errors.SpecError(
      f"{_OPERATION}: {place}: {name}: expected one value, as cpprb writes it, got "
      f"{error}."
    ) from error


def _read_member(place: str, archive: zipfile.ZipFile, name: str) -> Any:
  """Reads an array; of an array of objects the arrays that are pickled in it."""
  try:
    with archive.open(f"{name}.npy") as file:
      _, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
      if dtype.hasobject:
        return read_pickled_arrays(file)
    with archive.open(f"{name}.npy") as file:
      return np.lib.format.read_array(file, allow_pickle=False)
  except (KeyError, ValueError) as error:
    raise errors.SpecError(
      f"{_OPERATION}: {place}: {name}: expected arrays of numbers, got {error}. "
      f"Unpickling could run any code, so it is not done. {_SAFE_WAY}"
    ) from error
