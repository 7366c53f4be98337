"""What the demos of a robomimic file have in common: their specs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.conversions import arrays, hdf5_files
from t2r_seq.conversions.selection import Dropped

_COMPARED_BYTES = 1 << 24


@dataclasses.dataclass
class _Found:
  """One path over all demos.

  Attributes:
    dtype: of the dataset, or of the attribute.
    shape: of a step, or of the attribute.
    is_sequence: it is a dataset.
    demos: how many demos have it.
  """

  dtype: np.dtype
  shape: tuple[int, ...]
  is_sequence: bool
  demos: int = 0


class DemoScan:
  """Looks at every demo's datasets and attributes; reads no data but next_obs."""

  def __init__(self, path: str, dropped: Dropped) -> None:
    """Starts with nothing.

    Args:
      path: of the file, for errors.
      dropped: paths to leave out.
    """
    self._path = path
    self._dropped = dropped
    self._by_path: dict[str, _Found] = {}
    self._problems: list[errors.Mismatch] = []
    self.notes: list[str] = []

  def run(self, demos: list[Any]) -> specs.TensorSpecStruct:
    """Finds the specs of the demos.

    Args:
      demos: HDF5 groups.
    Returns:
      Specs by path, sorted; optional where some demos lack them.
    Raises:
      ConversionError: with every dataset that cannot be taken over.
    """
    for demo in demos:
      num_steps = count_steps(self._path, demo)
      for path, dataset in datasets(demo):
        if not self._dropped.has(path):
          self._add_dataset(demo, path, dataset, num_steps)
      for name, value in attributes(demo).items():
        if not self._dropped.has(name):
          self._add(demo, name, _Found(value.dtype, value.shape, False))
    spec = self._make_spec(len(demos))
    if self._problems:
      raise errors.mismatch_error(
        f"convert: {self._path}", self._problems, errors.ConversionError
      )
    return self._derive_next_obs(spec, demos)

  def _add_dataset(self, demo: Any, path: str, dataset: Any, num_steps: int) -> None:
    if dataset.external:
      self._problem(path, "data in this file", "data in other files")
    elif dataset.shape[:1] != (num_steps,):
      got = arrays.describe(dataset.dtype, dataset.shape)
      self._problem(path, f"{num_steps} rows", f"{got} in {demo.name}")
    else:
      self._add(demo, path, _Found(dataset.dtype, dataset.shape[1:], True))

  def _add(self, demo: Any, path: str, found: _Found) -> None:
    known = self._by_path.setdefault(path, found)
    if (known.dtype, known.shape, known.is_sequence) != (
      found.dtype,
      found.shape,
      found.is_sequence,
    ):
      want = f"{arrays.describe(known.dtype, known.shape)}, as other demos have"
      got = arrays.describe(found.dtype, found.shape)
      self._problem(path, want, f"{got} in {demo.name}")
    known.demos += 1

  def _problem(self, path: str, want: str, got: str) -> None:
    if all(problem.path != path for problem in self._problems):
      hint = f"Leave it out: --drop {path}."
      self._problems.append(errors.Mismatch(path, want, got, hint))

  def _make_spec(self, num_demos: int) -> specs.TensorSpecStruct:
    spec = specs.TensorSpecStruct()
    for path, found in sorted(self._by_path.items()):
      leaf: specs.ExtendedTensorSpec | errors.Mismatch
      if not found.is_sequence and found.dtype == object:
        leaf = specs.ExtendedTensorSpec(found.shape, tf.string, path)
      else:
        leaf = arrays.array_spec(path, found.dtype, found.shape, found.is_sequence)
      if isinstance(leaf, errors.Mismatch):
        self._problems.append(leaf)
        continue
      is_optional = found.demos < num_demos
      spec[path] = specs.ExtendedTensorSpec.from_spec(leaf, is_optional=is_optional)
    return spec

  def _derive_next_obs(
    self, spec: specs.TensorSpecStruct, demos: list[Any]
  ) -> specs.TensorSpecStruct:
    """Replaces each next_obs whose rows are the next obs by its last row."""
    derived: list[str] = []
    for path, leaf in spec.items():
      key = path.removeprefix(hdf5_files.NEXT_OBS)
      source = spec.get(hdf5_files.OBS + key)
      if not path.startswith(hdf5_files.NEXT_OBS) or not leaf.is_sequence:
        continue
      is_pair = source is not None and (source.shape, source.dtype) == (
        leaf.shape,
        leaf.dtype,
      )
      if (
        is_pair
        and not leaf.is_optional
        and all(is_shifted(demo[hdf5_files.OBS + key], demo[path]) for demo in demos)
      ):
        derived.append(path)
      else:
        self.notes.append(
          f"{path} is kept as a column: it is not everywhere the next {hdf5_files.OBS}"
          f"{key}."
        )
    for path in derived:
      fields = {**spec[path].fields(), "is_sequence": False}
      key = path.removeprefix(hdf5_files.NEXT_OBS)
      final = hdf5_files.FINAL_OBS + key
      fields["name"] = final
      del spec[path]
      spec[final] = specs.ExtendedTensorSpec(**fields)
    if derived:
      self.notes.append(
        f"{len(derived)} next_obs are the next obs: of each only the last row of an "
        "episode is stored, as final_obs."
      )
    return specs.TensorSpecStruct(sorted(spec.items()))


def datasets(demo: Any) -> list[tuple[str, Any]]:
  """Lists the datasets of a demo by path; links to other places are not followed."""
  h5py = hdf5_files.load_h5py()
  found: list[tuple[str, Any]] = []

  def visit(name: str, item: Any) -> None:
    if isinstance(item, h5py.Dataset):
      found.append((name, item))

  demo.visititems(visit)
  return sorted(found)


def attributes(demo: Any) -> dict[str, np.ndarray]:
  """Reads what a demo has besides its datasets: numbers, and text as bytes objects."""
  h5py = hdf5_files.load_h5py()
  found = {}
  for name, value in demo.attrs.items():
    if name != hdf5_files.NUM_SAMPLES and not isinstance(value, h5py.Empty):
      found[name] = _to_array(value)
  return dict(sorted(found.items()))


def count_steps(path: str, demo: Any) -> int:
  """Returns the steps of a demo: `num_samples`, or the rows of its actions."""
  count = demo.attrs.get(hdf5_files.NUM_SAMPLES)
  if count is None:
    rows = [len(dataset) for name, dataset in datasets(demo) if dataset.shape]
    count = rows[0] if rows else 0
  if int(count) < 1:
    raise errors.ConversionError(
      f"convert: {path}: {demo.name}: expected at least one step, got {int(count)}."
    )
  return int(count)


def is_shifted(obs: Any, next_obs: Any) -> bool:
  """Whether next_obs[t] is obs[t + 1], bit for bit, for all steps but the last."""
  rows = len(obs)
  row_bytes = max(math.prod(obs.shape[1:]) * obs.dtype.itemsize, 1)
  step = max(_COMPARED_BYTES // row_bytes, 1)
  for start in range(0, rows - 1, step):
    stop = min(start + step, rows - 1)
    if obs[start + 1 : stop + 1].tobytes() != next_obs[start:stop].tobytes():
      return False
  return True


def _to_array(value: Any) -> np.ndarray:
  array = np.asarray(value)
  if isinstance(value, np.void):  # Opaque: bytes that are no text.
    array = np.empty((), object)
    array[()] = value.tobytes()
    return array
  if array.dtype.kind not in "SUO":
    return array
  items = np.empty(array.shape, object)
  for index in np.ndindex(*array.shape):
    item = array[index]
    if not isinstance(item, (bytes, str)):
      raise errors.ConversionError(
        f"convert: an attribute of a demo: expected numbers or text, got "
        f"{type(item).__name__}."
      )
    items[index] = item.encode() if isinstance(item, str) else bytes(item)
  return items
