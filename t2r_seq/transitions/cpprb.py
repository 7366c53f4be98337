"""Reads cpprb's files of transitions without running the code of their pickles.

A pickle may call stand-ins of three names of numpy, which take an array's numbers; any
other name is an error.
"""

from __future__ import annotations

import os
import pickle
import pickletools
import re
import zipfile
import zlib
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from t2r_seq import errors
from t2r_seq.transitions.saving import save_transitions
from t2r_seq.windows import NStep

# An array takes about 40 operations; a million nested tuples overflow the C stack.
_MAX_OPERATIONS = 20_000
_DTYPES = re.compile(r"[biufc]\d{1,2}|O8?")
_BYTE_ORDERS = ("<", ">", "|", "=")
_PLAIN = (bool, int, float, str, bytes, type(None))


def read_pickled_arrays(file: IO[bytes]) -> Any:
  """Reads an array or a plain value, or a dict of these, from a seekable pickle.

  Arrays are read-only. ValueError if there is anything else.
  """
  try:
    _check_sizes(file)
    value = _Unpickler(file).load()
  except (_RefusedError, OSError):
    raise
  except Exception as error:  # Damaged bytes raise anything.
    raise _RefusedError(f"damaged bytes ({error})") from error
  if isinstance(value, _Array):
    value = value.content()
  if not isinstance(value, dict):
    return _numbers(value)
  for name in value:
    if not isinstance(name, str):
      raise _RefusedError(f"a {type(name).__name__} as a name")
  return {name: _numbers(item) for name, item in value.items()}


class _RefusedError(ValueError):
  """Something that is no data."""


def _check_sizes(file: IO[bytes]) -> None:
  """Limits the memory of the lengths and numbers, which `pickle` trusts."""
  start = file.tell()
  for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
    if count >= _MAX_OPERATIONS:
      raise _RefusedError(f"more than {_MAX_OPERATIONS} operations")
    if "PUT" in opcode.name and (argument or 0) > count:
      raise _RefusedError(f"a value numbered {argument}")
  file.seek(start)


class _Unpickler(pickle.Unpickler):
  """Unpickles plain values and the stand-ins below."""

  def find_class(self, module: str, name: str) -> Any:
    """Returns the stand-in of a name."""
    try:
      return _STAND_INS[module.replace("_core", "core"), name]
    except KeyError:
      raise _RefusedError(f"the name {module}.{name}, which is code") from None


class _Dtype:
  """Stands for `numpy.dtype`, which does not check its state."""

  __slots__ = ("dtype",)

  def __init__(self, name: str, *_: Any) -> None:
    if not isinstance(name, str) or not _DTYPES.fullmatch(name):
      raise _RefusedError(f"a dtype {name!r:.60}")
    self.dtype = np.dtype(name)

  def __setstate__(self, state: Any) -> None:
    if state[1] not in _BYTE_ORDERS:
      raise _RefusedError(f"the byte order {state[1]!r:.60}")
    self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
  """Stands for `numpy.ndarray` and its constructor."""

  __slots__ = ("_objects", "numbers")

  def __init__(self, *_: Any) -> None:
    self.numbers: np.ndarray | None = None
    self._objects: list[Any] = []

  def __setstate__(self, state: Any) -> None:
    _, shape, of, is_fortran, data = state
    if of.dtype.hasobject:
      if shape != () or type(data) is not list or len(data) != 1:
        raise _RefusedError("an array of several objects")
      self._objects = data
    elif min(shape, default=0) < 0:
      raise _RefusedError(f"the shape {shape}")
    else:
      flat = np.frombuffer(data, of.dtype)
      self.numbers = flat.reshape(shape, order="F" if is_fortran else "C")

  def content(self) -> Any:
    """Returns the only object of an array of objects, or itself."""
    return self._objects[0] if self._objects else self


_STAND_INS = {
  ("numpy.core.multiarray", "_reconstruct"): _Array,
  ("numpy", "ndarray"): _Array,
  ("numpy", "dtype"): _Dtype,
}


def _numbers(value: Any) -> Any:
  """Returns an array of numbers or a plain value."""
  if isinstance(value, _Array) and value.numbers is not None:
    return value.numbers
  if type(value) in _PLAIN:
    return value
  kind = "array of objects" if isinstance(value, _Array) else type(value).__name__
  raise _RefusedError(f"a value of type {kind}, which is no array of numbers")


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
  stacked: Mapping[str, int] | None = None,
) -> int:
  """Saves the transitions of a cpprb file by `save_transitions`.

  Reads files of `buffer.save_transitions(file)`, whose pickled arrays are read without
  running code, and of `numpy.savez(file, **buffer.get_all_transitions())`. cpprb is not
  needed.

  Args:
    npz_path: of cpprb's file, written with safe=True, its default.
    store_path: of the store; it must be missing or empty.
    rew: name of the reward in the buffer.
    done: name of the flag of terminals.
    truncated: name of the optional flag of truncations.
    n_step: (n, gamma) of the buffer if it had `Nstep`.
    metadata: further JSON values of the store.
    stacked: {'obs': -1} for a buffer with `stack_compress='obs'`; see
      `save_transitions`. The file has no record of it.
  Returns:
    The number of chains.
  Raises:
    SpecError: no file of cpprb, a newer one, one of safe=False or with values other
      than arrays; `n_step` does not match the file; or the transitions are invalid.
    StoreError: `store_path` is in use.
    OSError: the file can't be read, or the folder can't be written.
  """
  place = os.fspath(npz_path)
  declared = NStep.of(n_step)
  try:
    with zipfile.ZipFile(place) as archive:
      transitions = _read(place, archive, declared)
  except (OSError, errors.SpecError):
    raise
  except Exception as error:  # Damaged bytes raise anything.
    raise errors.SpecError(
      f"{_OPERATION}: {place}: expected a .npz file of cpprb, got {error}."
    ) from error
  return save_transitions(
    store_path, transitions, rew, done, truncated, declared, metadata, stacked
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
  """Reads an array; or the pickled arrays of an array of objects."""
  try:
    with archive.open(f"{name}.npy") as file:
      _, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
      if dtype.hasobject:
        return read_pickled_arrays(file)
    with archive.open(f"{name}.npy") as file:
      return np.lib.format.read_array(file, allow_pickle=False)
  except (OSError, zipfile.BadZipFile, zlib.error):
    raise
  except Exception as error:
    raise errors.SpecError(
      f"{_OPERATION}: {place}: {name}: expected arrays of numbers, got {error}. "
      f"Unpickling could run any code, so it is not done. {_SAFE_WAY}"
    ) from error
