"""Minari's datasets in Arrow files: a folder of each episode; HDF5 is a layout of it.

All columns have a row more than the episode has steps, and the last one is filler but
in the observations: there it is what the last step led to, and becomes
'final_observations'.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, imports, specs
from t2r_seq.episodes import reading
from t2r_seq.episodes.episodes import Values
from t2r_seq.episodes.registry import register_format
from t2r_seq.episodes.views import Dropped, Episodes
from t2r_seq.specs.image_headers import read_image_header

METADATA = "metadata.json"
_OBSERVATIONS = "observations"
_FINAL = "final_"
_TOTAL = "total_steps"


def read_metadata(folder: str) -> dict[str, Any]:
  """Reads the description of a dataset, or of an episode; {} where there is none.

  Raises:
    ConversionError: it is no JSON object.
  """
  name = os.path.join(folder, METADATA)
  if not os.path.isfile(name):
    return {}
  return reading.read_json_object(f"convert: {name}", name)


def find_arrow(path: str) -> str | None:
  """Returns the folder with the episodes in Arrow files; None where there is none."""
  for folder in (path, os.path.join(path, "data")):
    is_there = os.path.isfile(os.path.join(folder, METADATA))
    if is_there and read_metadata(folder).get("data_format") == "arrow":
      return folder
  return None


@register_format(
  "minari",
  recognises=lambda path: os.path.isdir(path) and find_arrow(path) is not None,
  description="a Minari data set",
  extra="lerobot",
)
class MinariEpisodes(Episodes):
  """Reads the episodes of a dataset in Arrow files."""

  def __init__(self, path: str, dropped: Dropped | None = None) -> None:
    """Reads the first episode, and how long all of them are.

    Args:
      path: of the dataset, or of the folder data in it.
      dropped: paths to leave out.
    Raises:
      ImportError: the extra is not installed.
      ConversionError: no dataset, or episodes are missing; names the file.
    """
    imports.load_extra("pyarrow", "lerobot")
    folder = find_arrow(path)
    if folder is None:
      raise errors.ConversionError(
        f"convert: {path}: expected a dataset of Minari's in Arrow files, got no "
        f"{METADATA} that says so."
      )
    self.path, self._folder = path, folder
    self._dropped = dropped or Dropped()
    known = read_metadata(folder)
    self.metadata = {"minari": known}
    numbers = sorted(int(name) for name in os.listdir(folder) if name.isdigit())
    total = known.get("total_episodes", len(numbers))
    if numbers != list(range(len(numbers))) or total != len(numbers) or not numbers:
      raise errors.ConversionError(
        f"convert: {folder}: expected the folders of {total} episodes, as {METADATA} "
        f"has it, got {errors.listing(map(str, numbers), 8)}."
      )
    self._lengths = [self._length(number) for number in numbers]
    self._numbers = [number for number in numbers if self._lengths[number]]
    self.lengths = np.asarray([n for n in self._lengths if n], np.int64)
    if empty := [self._place(n) for n in numbers if not self._lengths[n]]:
      self.notes = [reading.left_out(len(empty), empty[0])]
    self._spec_of_all: specs.TensorSpecStruct | None = None
    self.spec = specs.TensorSpecStruct()
    for number in self._numbers[:1]:
      self._read(number)
      self.spec = self._spec_of_all or self.spec

  def fingerprint(self) -> dict[str, Any]:
    """Returns the files' number, sizes and newest time."""
    return reading.folder_fingerprint(self._folder)

  def read(
    self,
    episode: int,
    paths: Collection[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> Values:
    """Reads steps of an episode; see `Episodes.read`."""
    values = self._read(self._numbers[episode])
    return {
      path: values[path][start:stop] if self.spec[path].is_sequence else values[path]
      for path in (self.spec if paths is None else paths)
      if path in values
    }

  def place(self, episode: int) -> str:
    """Returns where an episode is stored; episodes without a step count, too."""
    return self._place(self._numbers[episode])

  def _place(self, number: int) -> str:
    return f"episode {number} of {self._folder}"

  def _length(self, number: int) -> int:
    folder = os.path.join(self._folder, str(number))
    total = read_metadata(folder).get(_TOTAL)
    if not isinstance(total, int) or not 0 <= total < 1 << 62:
      raise errors.ConversionError(
        f"convert: {os.path.join(folder, METADATA)}: {_TOTAL}: expected a number of "
        f"steps, got {total!r}."
      )
    return total

  def _read(self, number: int) -> Values:
    import pyarrow

    folder, place = os.path.join(self._folder, str(number)), self._place(number)
    names = sorted(name for name in os.listdir(folder) if name.endswith(".arrow"))
    if not names:
      raise errors.ConversionError(f"convert: {place}: expected Arrow files, got none.")
    tables = []
    for name in names:
      name = os.path.join(folder, name)
      with reading.explained(name, "an Arrow file"), pyarrow.OSFile(name) as file:
        tables.append(pyarrow.ipc.open_file(file).read_all())
        tables[-1].validate(full=True)
    with reading.explained(place, "Arrow files of the same columns"):
      table = pyarrow.concat_tables(tables)
    length, values = self._lengths[number], {}
    if len(table) != length + 1:
      raise errors.ConversionError(
        f"convert: {place}: expected {length + 1} rows, one more than {_TOTAL} of "
        f"{METADATA}, got {len(table)}."
      )
    for name in table.column_names:
      for path, column in _columns(name, table[name].combine_chunks()):
        if self._dropped.has(path):
          continue
        rows = _rows(place, path, column)
        values[path] = rows[:-1]
        if path.split("/")[0] == _OBSERVATIONS and not self._dropped.has(_FINAL + path):
          final = rows[-1:].reshape(rows.shape[1:])
          values[_FINAL + path] = final
    self._check(place, values)
    return values

  def _check(self, place: str, values: Mapping[str, np.ndarray]) -> None:
    """Compares an episode with the first one, which says what all of them are."""
    found = specs.TensorSpecStruct(
      (path, _spec(path, array)) for path, array in sorted(values.items())
    )
    if self._spec_of_all is None:
      self._spec_of_all = found
    want = self._spec_of_all
    wrong = []
    for path in {**want, **found}:
      known, now = want.get(path), found.get(path)
      if known is None or now is None or known != now:
        expected, got = errors.describe(known), errors.describe(now)
        wrong.append(errors.Mismatch(path, expected, got))
    if wrong:
      raise errors.mismatch_error(f"convert: {place}", wrong, errors.ConversionError)


def _columns(path: str, column: Any) -> Iterator[tuple[str, Any]]:
  """Yields a column, or its fields, by path."""
  import pyarrow

  if not pyarrow.types.is_struct(column.type):
    yield path, column
    return
  for field in column.type:
    yield from _columns(f"{path}/{field.name}", column.field(field.name))


def _rows(place: str, path: str, column: Any) -> np.ndarray:
  """Returns the array of a column without fields.

  Raises:
    ConversionError: it has no rows of one size, or rows without a value.
  """
  import pyarrow

  types = pyarrow.types
  if types.is_binary(column.type) or types.is_string(column.type):
    rows = np.empty(len(column), object)
    items = [item or b"" for item in column.to_pylist()]
    rows[:] = [item.encode() if isinstance(item, str) else item for item in items]
    return rows
  shape: list[int] = []
  while types.is_fixed_size_list(column.type):
    shape.append(column.type.list_size)
    column = column.flatten()
  if types.is_nested(column.type):
    raise errors.ConversionError(
      f"convert: {place}: {path}: expected rows of one size, got {column.type}. Leave "
      f"it out: --drop {path}."
    )
  rows = column.to_numpy(zero_copy_only=False)
  if rows.dtype == object:
    raise errors.ConversionError(
      f"convert: {place}: {path}: expected a number in every row, got {column.type}, "
      f"{column.null_count} of them missing. Leave it out: --drop {path}."
    )
  return rows.reshape(-1, *shape)


def _spec(path: str, array: np.ndarray) -> specs.ExtendedTensorSpec:
  is_sequence = not path.startswith(_FINAL)
  shape = array.shape[1:] if is_sequence else array.shape
  if array.dtype != object:
    return specs.ExtendedTensorSpec(
      shape, tf.as_dtype(array.dtype), path, is_sequence=is_sequence
    )
  header = read_image_header(array.ravel()[0])
  if header is None:
    return specs.ExtendedTensorSpec(shape, tf.string, path, is_sequence=is_sequence)
  return specs.ExtendedTensorSpec(
    (header.height, header.width, header.channels),
    *(tf.uint8, path),
    is_sequence=is_sequence,
    data_format=header.format,
  )
