"""Zarr groups in diffusion_policy's layout: the names, and zarr's two Python APIs.

`data/<key>` arrays [total_steps, ...], `meta/episode_ends` int64 [episodes], and
further arrays [episodes, ...] in `meta` for what there is once per episode.
"""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Iterator
from typing import Any

from t2r_seq import errors, specs

ENDS = "episode_ends"
# An attribute of the root: specs by key, so that a round trip gives the same ones.
SPEC_ATTRIBUTE = "t2r_seq_spec"
METADATA_ATTRIBUTE = "t2r_seq_metadata"
_METADATA_FILES = (".zarray", "zarr.json")


def load_zarr() -> Any:
  """Imports zarr.

  Raises:
    ImportError: it is not installed; names the extra.
  """
  try:
    import zarr
  except ImportError as error:
    raise errors.missing_extra("zarr", "zarr") from error
  return zarr


def _is_v3_api(zarr: Any) -> bool:
  return int(zarr.__version__.split(".")[0]) >= 3


def open_group(path: str) -> Any:
  """Opens a group for reading: a folder, or a .zip file of one.

  Args:
    path: of the folder or file.
  Raises:
    ImportError: zarr is not installed.
    ConversionError: there is no zarr group.
  """
  zarr = load_zarr()
  store: Any = path
  if os.path.isfile(path):
    store = zarr.storage.ZipStore(path, mode="r")
  # What is checked is what is read: consolidated metadata could say other things.
  options = {"use_consolidated": False} if _is_v3_api(zarr) else {}
  try:
    return zarr.open_group(store, mode="r", **options)
  except Exception as error:
    raise errors.ConversionError(
      f"convert: {path}: expected a zarr group, got {type(error).__name__}: {error}."
    ) from error


def create_group(path: str) -> Any:
  """Makes a group of zarr format 2, which every version of zarr reads."""
  zarr = load_zarr()
  options = {"zarr_format": 2} if _is_v3_api(zarr) else {}
  return zarr.open_group(path, mode="a", **options)


def create_array(
  group: Any, name: str, shape: tuple[int, ...], dtype: Any, chunk: tuple[int, ...]
) -> Any:
  """Makes an array, compressed with Zstandard.

  Args:
    group: to put it into.
    name: of the array.
    shape: of the array.
    dtype: of its values.
    chunk: shape of a chunk.
  """
  import numcodecs

  codec = numcodecs.Zstd(level=3)
  options = {"shape": shape, "dtype": dtype, "chunks": chunk, "fill_value": 0}
  if _is_v3_api(load_zarr()):
    return group.create_array(name, compressors=codec, **options)
  return group.create_dataset(name, compressor=codec, **options)


def array_names(path: str, folder: str) -> list[str]:
  """Lists the arrays in a folder of a group, and refuses what could run code.

  The metadata is read here and not by zarr, which may load a codec that unpickles.

  Args:
    path: of the group.
    folder: 'data' or 'meta'.
  Returns:
    The names, sorted.
  Raises:
    ConversionError: with every array that is pickled.
  """
  found = []
  names = set()
  with _open_files(path) as (listing, read):
    for name in listing:
      parts = name.split("/")
      if len(parts) < 3 or parts[0] != folder or parts[-1] not in _METADATA_FILES:
        continue
      metadata = json.loads(read(name))
      if metadata.get("node_type", "array") != "array":
        continue
      key = "/".join(parts[1:-1])
      names.add(key)
      if _has_pickle(metadata):
        hint = f"Unpickling runs code: it is not done. Leave it out: --drop {key}."
        want = "an array of numbers"
        found.append(errors.Mismatch(key, want, "pickled objects", hint))
  if found:
    raise errors.mismatch_error(f"convert: {path}", found, errors.ConversionError)
  return sorted(names)


@contextlib.contextmanager
def _open_files(path: str) -> Iterator[tuple[list[str], Any]]:
  """Opens a folder or a .zip file: its metadata files, and how to read one."""
  if os.path.isfile(path):
    with zipfile.ZipFile(path) as archive:
      yield archive.namelist(), archive.read
    return

  def read(name: str) -> bytes:
    with open(os.path.join(path, name), "rb") as file:
      return file.read()

  yield list(_metadata_files(path)), read


def _metadata_files(path: str) -> Iterator[str]:
  for folder, folders, names in os.walk(path):
    for name in names:
      if name in _METADATA_FILES:
        yield os.path.relpath(os.path.join(folder, name), path).replace(os.sep, "/")
        if name == ".zarray":
          folders.clear()  # Below an array there are only chunks.


def _has_pickle(value: Any) -> bool:
  """Whether any codec in the metadata is, by its name, pickle."""
  if isinstance(value, dict):
    names = [str(value.get(field, "")) for field in ("id", "name")]
    is_pickle = any("pickle" in name.lower() for name in names)
    return is_pickle or any(_has_pickle(item) for item in value.values())
  return isinstance(value, list) and any(_has_pickle(item) for item in value)


def array_keys(spec: specs.TensorSpecStruct) -> dict[str, str]:
  """Names an array for each path: the spec's name, or the path, without slashes.

  Args:
    spec: of the episodes.
  Returns:
    Keys by path.
  Raises:
    SpecError: with every path whose key another one has.
  """
  keys: dict[str, str] = {}
  found = []
  taken: dict[str, str] = {ENDS: f"meta/{ENDS}"}
  for path, leaf in spec.items():
    key = (leaf.name or path).replace("/", "_")
    if key in taken:
      want = "a name of its own in the zarr group"
      got = f"'{key}', as {taken[key]} has"
      hint = "Give the specs other names, or leave one out with --drop."
      found.append(errors.Mismatch(path, want, got, hint))
    taken[key] = path
    keys[path] = key
  if found:
    raise errors.mismatch_error("convert", found)
  return keys
