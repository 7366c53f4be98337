"""Which kind of data is at a path: store, TFRecord files, zarr group, HDF5, TFDS."""

from __future__ import annotations

import glob
import os

from t2r_seq import errors
from t2r_seq.store import layout

STORE, TFRECORD, ZARR, HDF5 = "store", "tfrecord", "zarr", "hdf5"
# RLDS episodes, straight from TFRecord files or by way of TFDS, can be read only.
RLDS, TFDS = "rlds", "tfds"
KINDS = (STORE, TFRECORD, ZARR, HDF5)
SOURCE_KINDS = (*KINDS, RLDS, TFDS)

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_HDF5_SUFFIXES = (".hdf5", ".h5")
_ZARR_FILES = (".zgroup", "zarr.json", ".zmetadata")


def source_kind(path: str, given: str | None = None) -> str:
  """Returns the kind of a source, by what is there.

  Args:
    path: a folder, a file, or patterns of TFRecord files.
    given: the kind, if the caller knows better.
  Raises:
    ConversionError: there is nothing, or a folder of another kind.
  """
  if given:
    return _check_kind(given, SOURCE_KINDS)
  if os.path.isdir(path):
    return _folder_kind(path)
  if os.path.isfile(path):
    return _file_kind(path)
  if any(glob.glob(part.strip()) for part in path.split(",")) or ":" in path:
    return TFRECORD
  near = errors.nearest(os.path.basename(path), _siblings(path))
  raise errors.ConversionError(
    f"convert: {path}: expected a store, a zarr group, an HDF5 file or TFRecord files, "
    f"got nothing there.{near} The current folder is {os.getcwd()}"
  )


def destination_kind(path: str, source: str, given: str | None = None) -> str:
  """Returns the kind of a destination, by its name.

  Args:
    path: of the destination.
    source: kind of the source.
    given: the kind, if the caller knows better.
  Raises:
    ConversionError: the name doesn't tell; or neither side is a store.
  """
  kind = _check_kind(given) if given else _named_kind(path, source)
  if STORE not in (kind, source):
    raise errors.ConversionError(
      f"convert: {path}: expected a store on one of the two sides, got {source} to "
      f"{kind}. Convert to a store first (by any other name, or --to store), and the "
      f"store to {kind} then."
    )
  return kind


def _named_kind(path: str, source: str) -> str:
  name = os.path.basename(path.rstrip("/")).lower()
  if os.path.isdir(path) and os.path.exists(os.path.join(path, layout.MANIFEST)):
    return STORE
  if name.endswith(".zarr"):
    return ZARR
  if name.endswith(_HDF5_SUFFIXES):
    return HDF5
  if "tfrecord" in name:
    return TFRECORD
  if source != STORE:
    return STORE
  raise errors.ConversionError(
    f"convert: {path}: expected a name that tells what to convert the store to (.zarr, "
    ".hdf5, .h5, .tfrecord, .tfrecord.gz), got none of them. Say it with --to, one of "
    f"{errors.listing(KINDS)}."
  )


def _check_kind(kind: str, known: tuple[str, ...] = KINDS) -> str:
  if kind not in known:
    raise errors.ConversionError(
      f"convert: expected a kind of {errors.listing(known)}, got '{kind}'."
      f"{errors.nearest(kind, known)}"
    )
  return kind


def _folder_kind(path: str) -> str:
  names = set(os.listdir(path))
  if layout.MANIFEST in names:
    return STORE
  if names & set(_ZARR_FILES) or {"data", "meta"} <= names:
    return ZARR
  hint = f"Name the files in it, such as {os.path.join(path, '*.tfrecord*')}"
  raise errors.ConversionError(
    f"convert: {path}: expected a store (with a {layout.MANIFEST}) or a zarr group, "
    f"got a folder with {errors.listing(names, limit=5)}. {hint}"
  )


def _file_kind(path: str) -> str:
  with open(path, "rb") as file:
    start = file.read(len(_HDF5_SIGNATURE))
  if start == _HDF5_SIGNATURE or path.lower().endswith(_HDF5_SUFFIXES):
    return HDF5
  return ZARR if path.lower().endswith(".zarr.zip") else TFRECORD


def _siblings(path: str) -> list[str]:
  folder = os.path.dirname(os.path.abspath(path))
  return os.listdir(folder) if os.path.isdir(folder) else []
