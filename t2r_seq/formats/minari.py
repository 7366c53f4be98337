"""Reads Minari's datasets in Arrow files, a folder per episode; for HDF5 see `hdf5`.

Every column has one row more than the episode has steps. The last row is padding,
except for observations: it is the observation after the last step, and becomes
'final_observations'.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, imports
from t2r_seq.episodes import reading
from t2r_seq.episodes.episodes import Fields, Values
from t2r_seq.episodes.registry import register_format
from t2r_seq.episodes.views import Dropped, Episodes

METADATA = "metadata.json"
_OBSERVATIONS = "observations"
_FINAL = "final_"
_TOTAL = "total_steps"


def read_metadata(folder: str) -> dict[str, Any]:
  """Reads the metadata.json of a dataset or an episode; {} if it is missing."""
  name = os.path.join(folder, METADATA)
  return reading.read_json_object(name) if os.path.isfile(name) else {}


def _find_arrow(path: str) -> str | None:
  """Returns the folder with the episodes in Arrow files, or None."""
  for folder in (path, os.path.join(path, "data")):
    if read_metadata(folder).get("data_format") == "arrow":
      return folder
  return None


@register_format(
  "minari",
  recognises=lambda path: os.path.isdir(path) and _find_arrow(path) is not None,
  description="a Minari data set",
)
class MinariEpisodes(Episodes):
  """Reads the episodes of a dataset in Arrow files."""

  def __init__(self, path: str, dropped: Dropped | None = None) -> None:
    """Reads the first episode, and the lengths of all.

    Args:
      path: path of the dataset, or of its folder 'data'.
      dropped: paths to leave out; None for none.
    """
    imports.load_extra("pyarrow", "lerobot")
    folder = _find_arrow(path)
    if folder is None:
      want = "a dataset of Minari's in Arrow files"
      raise reading.fault(path, want, f"no {METADATA} with data_format 'arrow'")
    self.path, self._folder = path, folder
    self._dropped = dropped or Dropped()
    metadata = read_metadata(folder)
    self.metadata = {"minari": metadata}
    numbers = sorted(int(name) for name in os.listdir(folder) if name.isdigit())
    total = metadata.get("total_episodes", len(numbers))
    if numbers != list(range(len(numbers))) or total != len(numbers) or not numbers:
      want = f"the folders of {total} episodes, as {METADATA} has it"
      raise reading.fault(folder, want, errors.listing(map(str, numbers), 8))
    self._lengths = [self._length(number) for number in numbers]
    self._numbers = [number for number in numbers if self._lengths[number]]
    self.lengths = np.asarray([n for n in self._lengths if n], np.int64)
    self.notes = reading.left_out(
      [self._place(number) for number in numbers if not self._lengths[number]]
    )
    self._spec_fields: dict[str, Fields] = {}
    for number in self._numbers[:1]:
      self._read(number)

  def fingerprint(self) -> dict[str, Any]:
    return reading.folder_fingerprint(self._folder)

  def read(
    self,
    episode: int,
    paths: Collection[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> Values:
    values = self._read(self._numbers[episode])
    return {
      path: values[path] if path.startswith(_FINAL) else values[path][start:stop]
      for path in (self._spec_fields if paths is None else paths)
      if path in values
    }

  def place(self, episode: int) -> str:
    """Returns where an episode is stored: its number among all, empty ones included."""
    return self._place(self._numbers[episode])

  def _place(self, number: int) -> str:
    return f"episode {number} of {self._folder}"

  def _length(self, number: int) -> int:
    folder = os.path.join(self._folder, str(number))
    total = read_metadata(folder).get(_TOTAL)
    if not isinstance(total, int) or not 0 <= total < 1 << 62:
      place = f"{os.path.join(folder, METADATA)}: {_TOTAL}"
      raise reading.fault(place, "a number of steps", repr(total))
    return total

  def _read(self, number: int) -> Values:
    import pyarrow

    folder, place = os.path.join(self._folder, str(number)), self._place(number)
    names = sorted(name for name in os.listdir(folder) if name.endswith(".arrow"))
    if not names:
      raise reading.fault(place, "Arrow files", "none")
    tables = []
    for name in names:
      name = os.path.join(folder, name)
      with reading.explain_errors(name, "an Arrow file"), pyarrow.OSFile(name) as file:
        tables.append(pyarrow.ipc.open_file(file).read_all())
        tables[-1].validate(full=True)
    with reading.explain_errors(place, "Arrow files of the same columns"):
      table = pyarrow.concat_tables(tables)
    num_rows = self._lengths[number] + 1
    if len(table) != num_rows:
      want = f"{num_rows} rows, one more than {_TOTAL} of {METADATA}"
      raise reading.fault(place, want, len(table))
    values: Values = {}
    for name in table.column_names:
      for path, column in _columns(name, table[name].combine_chunks()):
        if self._dropped.has(path):
          continue
        rows = _rows(f"{place}: {path}", path, column)
        values[path] = rows[:-1]
        if path.split("/")[0] == _OBSERVATIONS and not self._dropped.has(_FINAL + path):
          values[_FINAL + path] = rows[-1:].reshape(rows.shape[1:])
    self._check(place, values)
    return values

  def _check(self, place: str, values: Mapping[str, np.ndarray]) -> None:
    """Raises ConversionError if specs differ from those of the first episode."""
    fields = {path: _fields(path, array) for path, array in sorted(values.items())}
    want = self._spec_fields = self._spec_fields or fields
    wrong = [
      errors.Mismatch(path, _describe(want.get(path)), _describe(fields.get(path)))
      for path in {**want, **fields}
      if _describe(want.get(path)) != _describe(fields.get(path))
    ]
    if wrong:
      raise reading.faults(place, wrong)


def _columns(path: str, column: Any) -> Iterator[tuple[str, Any]]:
  """Yields a column, or all fields of a struct, by path."""
  import pyarrow

  if not pyarrow.types.is_struct(column.type):
    yield path, column
    return
  for field in column.type:
    yield from _columns(f"{path}/{field.name}", column.field(field.name))


def _rows(place: str, path: str, column: Any) -> np.ndarray:
  """Returns the array of a column without fields."""
  import pyarrow

  types = pyarrow.types
  if types.is_binary(column.type) or types.is_string(column.type):
    items = [item or b"" for item in column.to_pylist()]
    return reading.objects(i.encode() if isinstance(i, str) else i for i in items)
  shape: list[int] = []
  while types.is_fixed_size_list(column.type):
    shape.append(column.type.list_size)
    column = column.flatten()
  hint = reading.leave_out(path)
  if types.is_nested(column.type):
    raise reading.fault(place, "rows of one size", column.type, hint)
  rows = column.to_numpy(zero_copy_only=False)
  if rows.dtype == object:
    got = f"{column.type}, {column.null_count} of them missing"
    raise reading.fault(place, "a number in every row", got, hint)
  return rows.reshape(-1, *shape)


def _fields(path: str, array: np.ndarray) -> Fields:
  is_sequence = not path.startswith(_FINAL)
  shape = array.shape[1:] if is_sequence else array.shape
  dtype, data_format = "string", None
  if array.dtype != object:
    dtype = reading.dtype_name(array.dtype)
  elif (form := reading.image_form(array.ravel()[0])) is not None:
    dtype, (data_format, shape) = "uint8", form
  return reading.make_fields(path, dtype, shape, is_sequence, data_format=data_format)


def _describe(fields: Fields | None) -> str:
  return "nothing" if fields is None else f"{fields['shape']} {fields['dtype']}"
