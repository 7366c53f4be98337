"""Sources and targets, by their kind."""

from __future__ import annotations

import glob
import os

from t2r_seq import errors, records, specs
from t2r_seq.conversions import hdf5_target, kinds, record_target, zarr_target
from t2r_seq.conversions.episodes import EpisodeSource, EpisodeTarget
from t2r_seq.conversions.hdf5_source import Hdf5Source
from t2r_seq.conversions.journal import Journal, journal_folder
from t2r_seq.conversions.options import ConversionOptions
from t2r_seq.conversions.record_episodes import RecordEpisodes
from t2r_seq.conversions.record_steps import RecordSteps
from t2r_seq.conversions.rlds_episodes import RldsEpisodes
from t2r_seq.conversions.selection import Dropped
from t2r_seq.conversions.stores import StoreSource, StoreTarget
from t2r_seq.conversions.tfds_source import TfdsSource
from t2r_seq.conversions.zarr_source import ZarrSource
from t2r_seq.store import layout


def open_source(
  kind: str,
  path: str,
  options: ConversionOptions,
  spec: specs.TensorSpecStruct | None = None,
  dropped: Dropped | None = None,
) -> EpisodeSource:
  """Opens a source.

  Args:
    kind: of it.
    path: of it.
    options: of the conversion.
    spec: what the source is read with, where that is known.
    dropped: paths to leave out, before anything is made of them.
  Raises:
    SpecError: it cannot be read.
  """
  if kind == kinds.STORE:
    return StoreSource(path)
  if kind == kinds.ZARR:
    return ZarrSource(path, dropped)
  if kind == kinds.HDF5:
    return Hdf5Source(path, dropped, spec)
  if kind == kinds.TFDS:
    return TfdsSource(path, options.split, dropped.has if dropped else None)
  if kind == kinds.RLDS:
    return RldsEpisodes(path, spec, options.compression)
  if options.bounds:
    return RecordSteps(path, options.bounds, spec, options.compression)
  return RecordEpisodes(path, spec, options.compression)


def check_target(
  kind: str, path: str, source: EpisodeSource, options: ConversionOptions
) -> None:
  """Checks, before anything is written, that a target can hold a source's episodes.

  Args:
    kind: of the target.
    path: of the target.
    source: what will be written.
    options: of the conversion.
  Raises:
    ImportError: an extra is not installed.
    SpecError: with every path that it cannot hold.
  """
  if kind == kinds.STORE:
    layout.make_columns(f"convert: {path}", source.spec)
  elif kind == kinds.ZARR:
    zarr_target.check_spec(path, source.spec)
  elif kind == kinds.HDF5:
    hdf5_target.check_spec(path, source.spec, options.compression)
  else:
    count = source.num_episodes or 0
    record_target.check_spec(path, source.spec, count, options.num_shards)


def open_target(
  kind: str,
  path: str,
  journal: Journal,
  source: EpisodeSource,
  options: ConversionOptions,
) -> EpisodeTarget:
  """Opens a target, new or as a killed conversion left it.

  Args:
    kind: of it.
    path: of it.
    journal: of the conversion.
    source: what will be written.
    options: of the conversion.
  Raises:
    StoreError: another process writes to the store.
    OSError: the folder cannot be written.
  """
  spec, metadata, work = source.spec, source.metadata, journal.work_folder
  if kind == kinds.STORE:
    return StoreTarget(path, spec, metadata, options.allow_nan)
  count = source.num_episodes or 0
  if kind == kinds.HDF5:
    return hdf5_target.Hdf5Target(
      path, work, spec, metadata, count, options.compression
    )
  if kind == kinds.TFRECORD:
    num_shards, compression = options.num_shards, options.compression
    return record_target.RecordTarget(path, spec, count, num_shards, compression)
  return zarr_target.ZarrTarget(path, work, spec, metadata, source.episode_ends or [])


def open_written(
  kind: str, path: str, spec: specs.TensorSpecStruct, options: ConversionOptions
) -> EpisodeSource:
  """Opens what a conversion has written, to read it again.

  Args:
    kind: of the destination.
    path: of the destination.
    spec: of its episodes.
    options: of the conversion.
  Raises:
    SpecError: it cannot be read.
  """
  if kind != kinds.TFRECORD:
    return open_source(kind, path, options, spec if kind == kinds.HDF5 else None)
  names = destination_files(kind, path, options)
  return RecordEpisodes(names, record_target.record_spec(spec), options.compression)


def destination_files(kind: str, path: str, options: ConversionOptions) -> list[str]:
  """Lists the files, or the folder, that a conversion writes."""
  if kind != kinds.TFRECORD:
    return [path]
  return record_target.shard_names(path, options.num_shards)


def check_vacant(kind: str, path: str, options: ConversionOptions) -> None:
  """Checks that a new conversion overwrites nothing.

  Raises:
    ConversionError: something is there.
  """
  names = destination_files(kind, path, options)
  there = [name for name in names if os.path.lexists(name)]
  is_empty = there == [path] and os.path.isdir(path) and not os.listdir(path)
  if there and not (kind == kinds.STORE and is_empty):
    raise errors.ConversionError(
      f"convert: {path}: expected nothing there, or a conversion to go on with, got "
      f"{errors.listing(there, limit=5)}, which no unfinished conversion has left. "
      "Delete it, or choose another destination."
    )
  others = records.other_shards(path, names) if kind == kinds.TFRECORD else []
  if others:
    raise errors.ConversionError(
      f"convert: {path}: expected no other files of that name, got "
      f"{errors.listing(others, limit=5)}, which patterns would read along with "
      "the new ones. Delete them, or choose another destination."
    )
  if glob.has_magic(path):
    raise errors.ConversionError(
      f"convert: {path}: expected the name of a destination, got a pattern."
    )


def check_there(kind: str, path: str, options: ConversionOptions) -> None:
  """Checks that what a finished conversion wrote is still there.

  Raises:
    ConversionError: with every file that is not.
  """
  names = destination_files(kind, path, options)
  missing = [name for name in names if not os.path.exists(name)]
  if missing:
    raise errors.ConversionError(
      f"convert: {path}: expected what was converted before, got nothing at "
      f"{errors.listing(missing, limit=5)}. To convert anew, delete "
      f"{journal_folder(path)}"
    )
